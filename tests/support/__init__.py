"""Helpers of tests in several packages."""
