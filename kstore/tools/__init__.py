"""Tools for operators: `dump` prints files, `check` verifies and repairs them, `log_picture` draws a log."""
