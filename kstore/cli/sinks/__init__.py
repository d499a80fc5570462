"""Writes the files of `kstore export`: Parquet, Arrow, CSV and JSON lines, and directories of Parquet files.

A sink takes one piece of records after the other, and holds one in memory. JSON lines need no PyArrow. Invariant: a
file or a directory gets its name only when it is complete and synced.
"""
