"""The package with which users test their own code."""
