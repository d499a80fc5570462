"""The swap: new segments replace the old ones that they were made from. An opening finishes it after a crash.

Each step is synced before the next (SEMANTICS 7.25, 8.4 to 8.7):

| step                                                 | what an opening does after a crash during or after it     |
|------------------------------------------------------|-----------------------------------------------------------|
| the new files are written, as `.cleaned`             | removes `.cleaned`: the log is the old one                |
| `make_swap_files`: `.cleaned` to `.swap`, from the   | removes `.cleaned`, and `.swap` at the lowest of them and |
| highest base down                                    | above; finishes lower `.swap` ones, as in the next row    |
| the new list, in memory: readers get it              | removes the files that the `.swap` logs cover, renames    |
|                                                      | `.swap` to the final names: the log is the new one        |
| `take_new_names`: the old files become `.deleted`,   | removes `.deleted` and files covered by the remaining     |
| then the new ones lose `.swap`, lowest base first    | `.swap` logs, renames these: the log is the new one       |
| `.deleted` files are unlinked later                  | removes `.deleted`                                        |

`take_back` undoes the first two steps. Invariant: after a power cut that keeps any of the unsynced renames and loses
the others, kstore and Kafka open the log without a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kstore.base.numbers import LONG_MAX
from kstore.disk import fs
from kstore.files import _log_search, names
from kstore.files.log_file import open_log

if TYPE_CHECKING:
    from kstore.log.segments.segment import Segment

_TXN_INDEX_TMP = names.TXN_INDEX + ".tmp"  # left by an interrupted recovery
_UNFINISHED = (names.DELETED, names.CLEANED, names.SWAP, _TXN_INDEX_TMP)


def make_swap_files(directory: str, new: Sequence[Segment]) -> None:
    """Rename `.cleaned` to `.swap`, the highest base first, and sync.

    Each of several new segments is synced before the next. An opening takes the `.swap` files below the lowest
    `.cleaned` file and deletes the old segments that they cover. In any other order it could delete an old segment that
    was divided among two new ones, although the second is missing. All `.cleaned` names are synced first: a power cut
    could lose one of them and keep the `.swap` name of another.
    """
    fs.sync_directory(directory)
    for segment in reversed(new):
        segment.rename(names.SWAP)
        fs.sync_directory(directory)


def take_new_names(directory: str, old: Sequence[Segment], new: Sequence[Segment]) -> list[str]:
    """Rename the old files to `.deleted`, then the new ones to their final names. Return the paths to unlink later."""
    gone = []
    for segment in old:
        gone += segment.rename(names.DELETED)
    fs.sync_directory(directory)
    for segment in new:
        # The lowest base first, each synced before the next: an opening deletes segments between `.swap` files.
        segment.rename("")
        fs.sync_directory(directory)
    return gone


def take_back(directory: str, new: Sequence[Segment]) -> None:
    """Remove the files of `new`, some of which may be `.swap` files.

    The lowest log is renamed to `.cleaned` first: as long as it exists, an opening removes all of them. The old
    segments have their indexes, so no `.swap` index may replace those.
    """
    first = f"{directory}/{names.log_name(new[0].base_offset)}"
    if fs.exists(first + names.SWAP):
        fs.rename(first + names.SWAP, first + names.CLEANED)
        fs.sync_directory(directory)
    for segment in reversed(new):
        segment.close()
        for kind in names.SEGMENT_KINDS:
            for state in (names.SWAP, names.CLEANED):
                path = f"{directory}/{names.file_name(segment.base_offset, kind, state)}"
                if path != first + names.CLEANED:
                    fs.unlink(path)
    fs.sync_directory(directory)
    fs.unlink(first + names.CLEANED)


class Leftovers(NamedTuple):
    """How to finish interrupted work: the names to remove, then the (name, final name) pairs to rename."""

    remove: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]


def has_leftovers(entries: Iterable[str]) -> bool:
    """Return whether any name is of an interrupted deletion or swap, so that `leftovers` must be called."""
    return any(name.endswith(_UNFINISHED) for name in entries)


def leftovers(entries: Iterable[str], swap_next_offset: Callable[[str], int]) -> Leftovers:
    """Decide, without I/O, how an opening finishes an interrupted deletion or swap.

    A writer carries the decision out; a read-only log applies it in memory. `swap_next_offset` returns one past the
    last offset of a `.log.swap`.
    """
    entries = sorted(entries)
    remove = [name for name in entries if name.endswith(names.DELETED) and not name.endswith(".checkpoint.deleted")]
    remove += [name for name in entries if name.endswith(_TXN_INDEX_TMP)]
    offsets = {name: offset for name in entries if (offset := names.parse_offset(name)) is not None}
    cleaned = [name for name in offsets if name.endswith(names.CLEANED)]
    swaps = [name for name in offsets if name.endswith(names.SWAP)]
    least = min((offsets[name] for name in cleaned), default=LONG_MAX + 1)
    remove += [name for name in swaps if offsets[name] >= least]
    remove += cleaned
    swaps = [name for name in swaps if offsets[name] < least]
    logs = [name for name in swaps if name.endswith(names.LOG + names.SWAP)]
    if logs:
        low = min(offsets[name] for name in logs)
        high = max(swap_next_offset(name) for name in logs)
        gone = {*remove, *swaps}
        remove += [name for name, offset in offsets.items() if name not in gone and low <= offset < high]
        if low == high and names.txn_index_name(low) in entries:
            remove.append(names.txn_index_name(low))  # of an old segment whose batches were all removed
    return Leftovers(tuple(remove), tuple((name, name.removesuffix(names.SWAP)) for name in swaps))


def find_leftovers(directory: str, entries: Iterable[str]) -> Leftovers:
    """Return the `leftovers` of the files in a directory."""
    if not has_leftovers(entries):
        return Leftovers((), ())
    return leftovers(entries, lambda name: _next_offset(f"{directory}/{name}", names.parse_offset(name) or 0))


def _next_offset(path: str, base_offset: int) -> int:
    with fs.closing(open_log(path)) as fd:
        last = _log_search.last_offset(fd, 0, fs.size(fd), path=path)
    return base_offset if last is None else last.last_offset + 1


def clear_leftovers(directory: str, entries: Iterable[str]) -> Leftovers:
    """Carry out and return what `leftovers` decides about the files in a directory."""
    unfinished = find_leftovers(directory, entries)
    for name in unfinished.remove:
        fs.unlink(f"{directory}/{name}")
    for name, final in unfinished.rename:
        fs.rename(f"{directory}/{name}", f"{directory}/{final}")
    if any(unfinished):
        fs.sync_directory(directory)
    return unfinished
