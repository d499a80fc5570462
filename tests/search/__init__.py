"""Searches for faults: fuzzed parsers, leaks and soaks."""
