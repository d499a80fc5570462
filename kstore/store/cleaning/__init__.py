"""The cleaner of a store: which log is cleaned next, in which thread, and how fast.

Owns the choice among many logs and the cleaner's threads. It leaves the cleaning of one log to `log.compaction`. The
hardest rule: one log at a time for each thread, and no other task waits for a cleaning.
"""
