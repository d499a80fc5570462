"""Bulk loads become part of the logs exactly once."""
