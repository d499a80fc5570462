"""Cases of Kafka's own test suites, told to kstore."""
