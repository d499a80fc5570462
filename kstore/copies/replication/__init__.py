"""Followers: a directory that holds the batches of a leader's, at the same offsets and with the same leader epochs."""
