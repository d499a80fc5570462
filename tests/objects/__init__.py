"""Logs in object stores: read where they lie, as the directory they were copied from."""
