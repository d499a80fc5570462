"""Documentation, layers, public API and security policy agree with the code."""
