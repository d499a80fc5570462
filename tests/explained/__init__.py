"""Explanations as text, HTML, pictures and tables."""
