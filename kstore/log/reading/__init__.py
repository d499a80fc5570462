"""Readers of a log: snapshots of its segments, searches by offset and time, waiting for more, reading beside a writer.

Owns everything that reads without a lock. It changes no file. Invariant: a reader that a truncation or deletion
overtakes gives no record of the bytes that it read before.
"""
