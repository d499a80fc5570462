"""Which log directory a new partition goes to: a decision, no I/O (SEMANTICS 13.3).

Only the number of partitions in each directory counts, neither their size nor their load. Directories are compared as
text: the caller passes them all in one form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

EVERY = "*"
"""Means all directories in `cordoned.log.dirs`."""


def order(roots: Sequence[str], counts: Mapping[str, int], *, cordoned: Collection[str] = ()) -> list[str]:
    """Return the directories in the order in which one new partition tries them, until it can be made in one.

    `roots` are the directories in service, in the order of `log.dirs`; `counts` says how many partitions are in each,
    moving ones included, and may have other directories. The directory with the fewest comes first, and equals in the
    order of `roots`. Cordoned directories are left out; if that leaves none, the result is the first in service. Empty
    if none is in service.
    """
    free = [] if EVERY in cordoned else [root for root in roots if root not in cordoned]
    return sorted(free or roots[:1], key=lambda root: counts.get(root, 0))


def spread(count: int, roots: Sequence[str], counts: Mapping[str, int], *, cordoned: Collection[str] = ()) -> list[str]:
    """Return the directories of `count` new partitions, one after another, each as `order` says after those before it.

    Raises `ValueError` if no directory is in service and there is anything to place.
    """
    usable = order(roots, counts, cordoned=cordoned)
    partitions = {root: counts.get(root, 0) for root in roots if root in usable}
    if count and not partitions:
        raise ValueError("no log directory is in service")
    chosen = []
    for _ in range(count):
        root = min(partitions, key=partitions.__getitem__)
        partitions[root] += 1
        chosen.append(root)
    return chosen
