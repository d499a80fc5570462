"""Compaction: finds the part of a log to clean and its superseded records, and replaces the segments.

Invariant: the newest record of a key survives whatever happens during a pass, a power failure included.
"""
