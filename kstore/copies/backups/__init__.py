"""Backups of a store's segments in an object store, which can be restored to any time of the last days."""
