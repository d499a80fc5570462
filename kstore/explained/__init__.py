"""Facts about why data is on a disk and when it goes, and their views: text, JSON, Arrow, SVG, HTML. No I/O.

The facts are found by `log/explaining`, `store/explain_store.py` and `planning`.
"""
