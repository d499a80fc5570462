"""Small tools that know nothing of logs: argument checks, closing, limits of numbers, optional imports, interrupts.

Owns nothing on the disk and no format. Every room may use it; it uses `kstore.errors` alone.
"""
