"""Backups of a store's segments in an object store, and restores to any time of the last days."""
