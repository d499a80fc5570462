"""Tests of what plans foretell: against real logs with a moved clock, and by arithmetic."""
