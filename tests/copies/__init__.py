"""Replicas, backups and restores: a copy is complete, or an error says what is missing."""
