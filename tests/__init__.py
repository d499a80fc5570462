"""Tests of the whole: documentation, layers, public API and security policy agree with the code."""
