"""Foretells what settings do under a load: the real rules of rolls and retention, run with a moved clock.

Invariant: time moves from event to event by arithmetic, so a year of any load takes a bounded number of steps.
"""
