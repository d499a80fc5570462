"""Each kind of file is read strictly and written durably."""
