"""The writing side of a backup: what is new at the source, round by round, and the uploads of sealed segments.

Reads the source's files and changes none. The hardest rule: what is sent was durable at the source when it was read.
"""
