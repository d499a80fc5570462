"""The package that reaches the disk: files, locks, open files, and its twin that fails on demand."""
