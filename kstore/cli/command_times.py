"""Parses times on the command line."""

from __future__ import annotations

from kstore.base.times import TIME_FORMS, parse, show

__all__ = ["HELP", "parse", "show"]

HELP = TIME_FORMS
