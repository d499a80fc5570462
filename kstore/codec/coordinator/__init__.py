"""The records that Kafka's coordinators keep in their own topics: as bytes, as values, and as the dump tool's text.

Versions that a broker may have written are read, and one version is written.
"""
