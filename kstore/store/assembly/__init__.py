"""A store's parts as one: what they are, how they are opened, and what they say together.

Owns the order in which an opening does things; leaves every deed to the part that does it. The hardest rule: whatever
fails, an opening gives back each lock that it has taken.
"""
