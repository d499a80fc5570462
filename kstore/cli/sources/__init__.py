"""Reads files of rows for `kstore ingest` as columns of records: CSV, JSON lines, Parquet and Arrow.

A source yields `Rows` for `Store.append_columns`, and holds one piece in memory at a time. JSON lines need no PyArrow.
Invariant: an error names the file and the row, and the columns of a file and their types are checked when it is opened,
before anything is appended.
"""
