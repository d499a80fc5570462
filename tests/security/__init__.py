"""Hostile bytes, damaged files and links end in a clear error within bounded memory."""
