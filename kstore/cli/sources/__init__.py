"""Files of rows for `kstore ingest`: CSV, JSON lines, Parquet and Arrow, as columns of records, piece by piece.

A source gives `Rows`, which `Store.append_columns` takes, and holds one piece at a time. PyArrow reads the files; JSON
lines are read without it. Invariant: an error names the file and the row, and what can be seen when a file is
opened (its columns, their types) is checked before anything is appended.
"""
