"""General helpers that every package may use: argument checks, limits of numbers, optional imports, threads, times.

Invariant: they know nothing of logs, and of kstore's other modules they import only `kstore.errors`.
"""
