"""Helper threads, interrupts, event loops and terminal output, which all packages use."""
