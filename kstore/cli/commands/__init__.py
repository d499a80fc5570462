"""One module for each subcommand, with `run(arguments) -> exit code`; only the module of the given one is imported."""
