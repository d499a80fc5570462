"""Prints files as text, byte for byte as Kafka's dump tool does, and as JSON with more details.

Invariant: standard output of `kstore dump --files` equals that of Kafka's tool.
"""
