"""Segments: recovery, retention, the log start and the state of producers."""
