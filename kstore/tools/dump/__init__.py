"""Files as text: what Kafka's dump tool prints, byte for byte, and more of it as JSON.

Owns the texts. It leaves parsing to `files` and `codec`. The hardest rule: standard output of `kstore dump --files`
equals that of Kafka's tool.
"""
