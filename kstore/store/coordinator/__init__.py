"""Groups, producers and transactions: does the work of a broker's coordinators, with the same internal topics.

Invariant: the state in memory (group positions, transactional ids, sequence numbers) changes only when the record of
the change is in the log.
"""
