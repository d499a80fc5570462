"""The asynchronous calls of a store: tasks of an event loop that append to topics, flush them, read and follow them.

What a task waits for, and in which thread it is done, is as in `log.awaiting`. The hardest rule is the same: a task may
be cancelled whenever it waits.
"""
