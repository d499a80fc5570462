"""General helpers that every package may use: argument checks, limits of numbers, optional imports, threads, times.

Invariant: they know nothing of logs, and import only `kstore.errors`.
"""
