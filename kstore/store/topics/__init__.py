"""Appends and reads by topic: which partition a record goes to, and partitions read as one stream.

Owns Kafka's default partitioner and the merge of partitions. It leaves each partition to its `Log`. The hardest rule: a
key goes to the partition to which Kafka's producer sends it.
"""
