"""Many logs in the directories of a broker: catalog, locks, checkpoints, housekeeping, administration.

`topics` appends and reads by topic, `coordinator` has groups and transactions, `bulk_loads` adds staged segments.
Invariant: if a partition cannot be opened, only that partition is refused, and no marker of a clean shutdown is
written.
"""
