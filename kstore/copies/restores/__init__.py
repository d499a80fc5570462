"""Restores: a directory of logs from a backup, as of a round that the backup still has.

A restore reads the backup's objects and writes into one directory that was empty before. The hardest rule: what a
backup says is a stranger's word, so that nothing outside of the directory is written, whatever it says.
"""
