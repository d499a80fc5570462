"""Dump, verify and repair: what they print, find and mend."""
