"""One partition: appends, reads, flushes and columns."""
