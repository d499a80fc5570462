"""kstore: Kafka's commit log inside a Python process."""
