"""Compaction: which part of a log is cleaned, which records are superseded, and the exchange of the segments.

Owns the decision when a log is cleanable, the offset map, the filter of batches, and the pass over a log. It leaves the
gate and the housekeeping of a log to `log.writing`, and the choice among many logs to `store`. The hardest rule: the
newest record of a key survives whatever happens in the middle of a pass, a power failure included.
"""
