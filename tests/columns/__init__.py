"""Records as Arrow and NumPy columns, written and read."""
