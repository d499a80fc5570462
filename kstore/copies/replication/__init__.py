"""Followers: directories with a copy of a leader's batches, at the same offsets and with the same leader epochs."""
