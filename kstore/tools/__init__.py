"""Tools for operators: `dump` prints files, `check` verifies and repairs them."""
