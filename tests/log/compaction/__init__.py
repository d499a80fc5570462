"""Compaction: which records stay, how files are swapped, what readers see."""
