"""The asynchronous calls of a log: tasks of an event loop that wait for its records and for its syncs.

An append is a write to the page cache and is made in the loop's thread; reads from the disk and syncs are made in
threads of the loop's executor, one sync of a log at a time. The hardest rule: a task may be cancelled whenever it
waits, and then the log is as a completed or an omitted call leaves it.
"""
