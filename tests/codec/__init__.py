"""Record batches of every format are packed, read, validated and compressed as Kafka does."""
