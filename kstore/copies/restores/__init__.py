"""Restores a directory of logs from a backup, as of a round that the backup still has.

Invariant: whatever a backup contains, nothing outside the directory is written.
"""
