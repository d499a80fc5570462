"""The only way to the disk: files, descriptors, locks, and the budget of open files.

Invariant: no other package calls `os`, `fcntl` or `mmap` to open, read, write, sync, rename, delete, map or lock, so
that the tests can put a failing disk in its place (`tests/support/faultfs.py`).
"""
