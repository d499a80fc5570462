"""Many logs in the directories of a broker: catalog, locks, checkpoints, housekeeping, administration.

`topics` appends and reads by topic, `coordinator` has groups and transactions, `bulk_loads` bulk loads. Invariant: a
partition that cannot be opened is refused alone, and no marker of a clean shutdown is written while one is refused.
"""
