"""General helpers that every package may use: argument checks, limits of numbers, optional imports, threads, times.

Invariant: this package does not know of logs, and imports no other module of kstore except `kstore.errors`.
"""
