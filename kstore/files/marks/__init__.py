"""Marks in a directory of logs that say that it may not be used as any other."""
