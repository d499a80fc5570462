"""Reads logs by offset or by time, also while another process writes them, and waits for new records.

Reading takes no lock and changes no file. Invariant: if a truncation or deletion removes records that a reader has read
ahead, the reader does not return them.
"""
