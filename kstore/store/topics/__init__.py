"""Appends and reads by topic: Kafka's default partitioner, and the merge of partitions into one stream.

Invariant: a key goes to the partition to which Kafka's producer sends it.
"""
