"""Kafka's settings: names, defaults, ranges, and changes while a log is open."""
