"""Values with a schema: JSON, Avro and Protobuf become Arrow columns."""
