"""Log.explain: why a log rolled, what keeps its segments and until when, and where a record lies."""
