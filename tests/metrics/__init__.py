"""Metrics, statistics and log messages are those that their pages list."""
