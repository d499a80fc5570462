"""What Python processes of Spark import that a test kills."""
