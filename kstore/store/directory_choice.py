"""Chooses the log directory of a new partition, without I/O (SEMANTICS 13.3).

Only the number of partitions in each directory counts, not their size or load. Directories are compared as text, so the
caller passes all of them in the same form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

EVERY = "*"
"""Means all directories in `cordoned.log.dirs`."""


def order(roots: Sequence[str], counts: Mapping[str, int], *, cordoned: Collection[str] = ()) -> list[str]:
    """Return the directories in the order in which to try them for one new partition.

    `roots` are the directories in service, in the order of `log.dirs`; `counts` has the number of partitions in each,
    including those that are being moved, and may have other directories. The directory with the fewest partitions comes
    first; directories with equal numbers keep the order of `roots`. Cordoned directories are left out. If all are
    cordoned, the result is the first directory; if none is in service, it is empty.
    """
    free = [] if EVERY in cordoned else [root for root in roots if root not in cordoned]
    return sorted(free or roots[:1], key=lambda root: counts.get(root, 0))


def spread(count: int, roots: Sequence[str], counts: Mapping[str, int], *, cordoned: Collection[str] = ()) -> list[str]:
    """Return the directories of `count` new partitions, chosen one by one: each is the first that `order` returns then.

    Raises `ValueError` if no directory is in service and `count` is not 0.
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
