"""Logs as tables for query engines: what a query does not need is not read."""
