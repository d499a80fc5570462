"""Spark reads and writes logs; its parts also without a JVM."""
