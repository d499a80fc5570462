"""The subcommands: one module each, with `run(arguments) -> exit code`. Only the module that is needed is imported."""
