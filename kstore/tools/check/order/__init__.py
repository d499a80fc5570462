"""Decides where segments and batches belong that are under wrong names or out of order. Reads, and changes nothing."""
