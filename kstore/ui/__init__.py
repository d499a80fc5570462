"""The pages of `kstore ui`: a read-only view of directories of logs in a browser, served on the loopback address.

Invariant: nothing here changes a file or takes a lock, and no part of a request reaches the file system: topics are
looked up in a store's list, static files in a dict. Starlette, uvicorn and Jinja2 are imported on use.
"""
