"""Groups, producers and transactions: the work of a broker's coordinators, on the same topics.

Invariant: the state in memory (group positions, transactional ids, sequence numbers) changes only when the record of
the change is in the log.
"""
