"""The command line as a user meets it: output, exit codes, signals and pipes."""
