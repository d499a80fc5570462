"""The records of Kafka's coordinators in their internal topics: as bytes, as values, and as the dump tool's text.

Reads all versions that a broker may have written, and writes one version.
"""
