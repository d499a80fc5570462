"""The records that Kafka's coordinators keep in their own topics: as bytes, as values, and as the dump tool's text.

Owns the schemas of `__consumer_offsets` and `__transaction_state`. It leaves their meaning over time to
`store.coordinator`. The hardest rule: versions that a broker may have written are read, and one version is written.
"""
