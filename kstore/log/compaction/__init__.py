"""Compaction: which part of a log is cleaned, which records are superseded, and the exchange of the segments.

Invariant: the newest record of a key survives whatever happens in the middle of a pass, a power failure included.
"""
