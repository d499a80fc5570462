"""Copies of a store on another disk or machine: followers that can take over from a leader, and backups.

Bytes are copied, not records. Invariant: a copy is changed only after it is known to be a copy of this source.
"""
