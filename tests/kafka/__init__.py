"""Kafka's own classes and brokers beside kstore: the same operations give the same bytes and answers."""
