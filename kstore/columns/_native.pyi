"""The one copy of the C of columns that has state: the pool of blocks, the crew of threads."""
