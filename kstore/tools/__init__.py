"""What operators use on files: `dump` prints them, `check` verifies and repairs them."""
