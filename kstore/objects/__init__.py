"""Object stores: the client, the format of backups, and prefixes that are read in place as log directories.

See docs/objects.md and docs/copies.md.
"""
