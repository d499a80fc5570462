"""Metrics: what a log, a store, a replication or a backup says of itself, for Prometheus and OpenTelemetry.

All numbers are there already: nothing is counted here. Invariant: a scrape opens no file of a store's log, takes no
lock that an append waits for, and goes on beside `close()`.
"""
