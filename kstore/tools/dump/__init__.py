"""Files as text: what Kafka's dump tool prints, byte for byte, and more of it as JSON.

Invariant: standard output of `kstore dump --files` equals that of Kafka's tool.
"""
