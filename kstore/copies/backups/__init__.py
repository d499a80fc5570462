"""Backups: a store's segments in an object store, as of any moment of the last days."""
