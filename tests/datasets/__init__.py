"""Logs as Arrow datasets and Polars frames; values decoded by a schema."""
