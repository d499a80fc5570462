"""The writer of a log: its gate, appends, group commit, truncation, deletion and background work.

Invariant: an append that fails leaves no trace, and once the state of the disk is unknown, the log refuses writes until
it is reopened.
"""
