"""Values decoded by a schema: JSON, Avro and Protobuf."""
