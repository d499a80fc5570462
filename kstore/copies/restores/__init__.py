"""Restores: a directory of logs from a backup, as of a round that the backup still has.

Invariant: whatever a backup says, nothing outside of the directory is written.
"""
