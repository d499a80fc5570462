"""Segments: opening, recovery, when to roll, and the producer state of a log. `log.writing` says who may write.

Invariant: records below the recovery point were flushed, so recovery never cuts them.
"""
