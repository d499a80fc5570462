"""Groups, producers and transactions."""
