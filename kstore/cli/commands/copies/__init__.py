"""The subcommands about copies: followers, failover, backups."""
