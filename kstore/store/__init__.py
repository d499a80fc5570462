"""Many logs in the directories of a broker: catalog, locks, checkpoints, housekeeping, administration.

Owns what belongs to a log directory as a whole. It is built from `topics` (appends and reads by topic), `coordinator`
(groups and transactions), `loads` (bulk loads) and `assembly` (what concerns all parts at once). The hardest rule: a
partition that cannot be opened is refused alone, and no marker of a clean shutdown is written while one is refused.
"""
