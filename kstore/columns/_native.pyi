"""The only copy of the C code of columns that has state: the pool of blocks and the crew of threads."""
