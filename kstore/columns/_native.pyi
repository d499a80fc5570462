"""The C code of columns that has state, the pool of blocks and the crew of threads: this module has the only copy."""
