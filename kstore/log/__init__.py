"""One log, that is one partition directory: the public `Log`, in parts for appends, reads and columns.

Owns the public face of a log. The work is in three rooms below it: `segments` (files that belong together), `viewing`
(readers), `writing` (the one writer). The hardest rule: an append that returned is never lost while the machine runs,
and a flush that returned is never lost at all.
"""
