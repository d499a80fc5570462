"""Reads logs, also while another process writes them: by offset, by time, and waiting for more.

Reading takes no lock and changes no file. Invariant: a reader that a truncation or deletion overtakes returns no record
of the bytes that it read before.
"""
