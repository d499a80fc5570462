"""Reads files of mounts for compiled code, which reads files by their descriptors and without the GIL."""
