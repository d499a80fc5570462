"""Bulk loads: add segments that tasks have staged to the logs, exactly once. `kstore.spark` stages them.

Invariant: one durable record (COMMIT) decides a load, and an interrupted load is finished from this record.
"""
