"""Copies of a store on another disk or machine: followers that go on where a leader stops, and backups.

Bytes are copied, never records. Invariant: a copy is changed only after it is known to be one of this source.
"""
