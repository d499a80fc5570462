"""A store: topics, directories, leadership, housekeeping and compaction."""
