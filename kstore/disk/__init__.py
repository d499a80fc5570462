"""The only way to the disk: files, descriptors, locks, and the budget of open files.

Owns every system call that opens, reads, writes, syncs, renames, deletes, maps or locks. It leaves the meaning of bytes
and names to the rooms above. The hardest rule: no other room calls `os`, `fcntl` or `mmap` for these, so that the tests
can put a failing disk in its place (`tests/support/faultfs.py`).
"""
