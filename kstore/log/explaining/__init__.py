"""Finds the facts of `Log.explain`: why a log rolled, what keeps its segments and until when, where a record lies.

The modules read a `View`, and use the functions that roll, delete and look up. They change nothing and take no lock.
"""
