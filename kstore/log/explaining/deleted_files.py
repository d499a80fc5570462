"""Lists the files of deleted segments that are still on the disk, and when each is unlinked (SEMANTICS 6.12, 6.13)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.disk import fs
from kstore.explained.explanation import DeletedFile
from kstore.files import names
from kstore.log.writing.writer import Writer

if TYPE_CHECKING:
    from kstore.log.reading.read_only_view import ReadOnlyView


def deleted_files(view: Writer | ReadOnlyView) -> tuple[DeletedFile, ...]:
    """Return the `.deleted` files of a partition's directory, by name."""
    due = view.housekeeping.unlinks() if isinstance(view, Writer) else {}
    found = []
    for name in sorted(fs.listdir(view.directory)):
        if name.endswith(names.DELETED):
            path = f"{view.directory}/{name}"
            with suppress(fs.MissingFileError):  # unlinked since the listing
                found.append(DeletedFile(path, fs.stat(path, follow=False).st_size, due.get(path)))
    return tuple(found)
