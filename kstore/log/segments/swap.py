"""The swap: new segments take the place of the old ones they were made from, and an opening finishes it after a crash.

Each step is on the disk before the next (SEMANTICS 7.25, 8.4 to 8.7):

| step                                                 | what an opening does after a crash in it, or behind it    |
|------------------------------------------------------|-----------------------------------------------------------|
| the new files are written, as `.cleaned`             | removes `.cleaned`: the log is the old one                |
| `make_swap_files`: `.cleaned` to `.swap`, from the   | removes `.cleaned`, and `.swap` from the lowest of them   |
| highest base down                                    | on; the new segments below take their place, as next      |
| the new list, in memory: readers get it              | removes what the `.swap` logs cover, renames `.swap` to   |
|                                                      | the final names: the log is the new one                   |
| `take_new_names`: the old files become `.deleted`,   | removes `.deleted` and what the `.swap` logs left cover,  |
| then `.swap` goes from the names, lowest base first  | renames them: the log is the new one                      |
| `.deleted` files are unlinked later                  | removes `.deleted`                                        |

`take_back` undoes the first two. Invariant: a power cut may keep any of the renames that no sync has covered and lose
the others, and what is left opens without a loss, by kstore and by Kafka.
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

_TXN_INDEX_TMP = names.TXN_INDEX + ".tmp"  # what a recovery that was interrupted left of a transaction index
_UNFINISHED = (names.DELETED, names.CLEANED, names.SWAP, _TXN_INDEX_TMP)


def make_swap_files(directory: str, new: Sequence[Segment]) -> None:
    """Rename `.cleaned` to `.swap`, the highest base first, and sync.

    Among several new segments each is synced before the next. An opening takes the `.swap` files below the least
    `.cleaned` one, and then deletes the old segments that these cover: one that was divided among two new segments
    would go although the second is not there. The names that end in `.cleaned` are synced before all: a power cut that
    lost one of them could keep the `.swap` name of another.
    """
    fs.sync_directory(directory)
    for segment in reversed(new):
        segment.rename(names.SWAP)
        fs.sync_directory(directory)


def take_new_names(directory: str, old: Sequence[Segment], new: Sequence[Segment]) -> list[str]:
    """Give the old files their `.deleted` names and the new ones their final names; what is to be unlinked later."""
    gone = []
    for segment in old:
        gone += segment.rename(names.DELETED)
    fs.sync_directory(directory)
    for segment in new:
        # The lowest base first, each synced before the next: an opening deletes what lies between `.swap` files.
        segment.rename("")
        fs.sync_directory(directory)
    return gone


def take_back(directory: str, new: Sequence[Segment]) -> None:
    """Remove the files of `new`, some of which may be `.swap` files.

    First the lowest log is `.cleaned` again. As long as it is, an opening removes all of them. The old segments have
    their indexes, so that no `.swap` index may take their place.
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
    """How interrupted work is finished: names to remove, then (name, final name) to rename."""

    remove: tuple[str, ...]
    rename: tuple[tuple[str, str], ...]


def has_leftovers(entries: Iterable[str]) -> bool:
    """Whether there are names for `leftovers` to decide about."""
    return any(name.endswith(_UNFINISHED) for name in entries)


def leftovers(entries: Iterable[str], swap_next_offset: Callable[[str], int]) -> Leftovers:
    """Decide what an opening does, without I/O: a writer carries it out, a read-only log applies it in memory.

    `swap_next_offset` reads one past the last offset of a `.log.swap`.
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
            remove.append(names.txn_index_name(low))  # of an old segment, of which no batch is left
    return Leftovers(tuple(remove), tuple((name, name.removesuffix(names.SWAP)) for name in swaps))


def find_leftovers(directory: str, entries: Iterable[str]) -> Leftovers:
    """As `leftovers`, of the files in a directory."""
    return leftovers(entries, lambda name: _next_offset(f"{directory}/{name}", names.parse_offset(name) or 0))


def _next_offset(path: str, base_offset: int) -> int:
    with fs.closing(open_log(path)) as fd:
        last = _log_search.last_offset(fd, 0, fs.size(fd), path=path)
    return base_offset if last is None else last.last_offset + 1


def clear_leftovers(directory: str, entries: Iterable[str]) -> Leftovers:
    """Carry out what `leftovers` decides about the files in a directory; what that was."""
    unfinished = find_leftovers(directory, entries) if has_leftovers(entries) else Leftovers((), ())
    for name in unfinished.remove:
        fs.unlink(f"{directory}/{name}")
    for name, final in unfinished.rename:
        fs.rename(f"{directory}/{name}", f"{directory}/{final}")
    if any(unfinished):
        fs.sync_directory(directory)
    return unfinished
