"""All disk access: files, descriptors, locks, and the budget of open files.

Invariant: no other package calls `os`, `fcntl` or `mmap` to open, read, write, sync, rename, delete, map or lock, so
that tests can replace this package with a failing disk (`tests/support/faultfs.py`).
"""
