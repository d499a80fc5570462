"""Files that Kafka's brokers wrote are read, recovered and written again byte for byte."""
