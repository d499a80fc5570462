"""Logs as Arrow datasets and Polars frames."""
