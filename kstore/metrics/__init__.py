"""Exports metrics of logs, stores, replications and backups to Prometheus and OpenTelemetry.

Nothing is counted here: the numbers exist already. Invariant: a scrape opens no file of a store's log, takes no lock
that an append waits for, and may run at the same time as `close()`.
"""
