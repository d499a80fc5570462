"""Many logs in the directories of a broker: catalog, locks, checkpoints, housekeeping, administration.

`topics` appends and reads by topic, `coordinator` has groups and transactions, `bulk_loads` adds staged segments.
Invariant: a partition that cannot be opened is refused alone, and prevents the marker of a clean shutdown.
"""
