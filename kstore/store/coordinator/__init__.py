"""Groups, producers and transactions: the work of a broker's coordinators, on the same topics.

Owns positions of groups, transactional ids and sequence numbers. Invariant: the state in memory changes only when the
record that says so is in the log.
"""
