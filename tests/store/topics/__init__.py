"""Topics: where records go, appends, reads and repeated appends."""
