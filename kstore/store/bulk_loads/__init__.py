"""Bulk loads: segments that tasks have staged become part of the logs, exactly once.

Owns the order of steps of a commit. It leaves staging to `kstore.spark`. The hardest rule: one durable record decides a
load, and an interrupted load is finished from it.
"""
