"""Uploads what a task attempt has staged on its own disk to an object store, part by part.

The `.log` files go one after the other into few objects: one for each GiB. Indexes stay; the store that adopts the job
builds them. Invariant: an attempt that fails deletes the objects that it has written.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kstore._core import crc32c
from kstore.disk import fs
from kstore.errors import KStoreError, StorageError
from kstore.files import names
from kstore.objects import staged_objects
from kstore.objects.object_store import PART_BYTES
from kstore.objects.staged_objects import StagedKey
from kstore.store.bulk_loads.load_manifest import Staged

OBJECT_BYTES = 1 << 30
"""An object that has so many bytes gets no further file: one upload may have 10,000 parts of 8 MiB."""


@dataclass(slots=True)
class _LogFile:
    """A file to upload; `crc` is known afterwards."""

    path: str
    length: int
    row: int
    number: int = 0
    position: int = 0
    crc: int = 0


def upload(rows: Sequence[Staged], stage: str, job: str, storage: Mapping[str, Any] | None) -> list[Staged]:
    """Upload the files of an attempt's rows; return the rows with their places in the object store."""
    if not rows:
        return []
    attempt = os.path.basename(rows[0].directory)
    files = _placed(rows)
    with staged_objects.open_job(stage, job, storage) as objects:
        try:
            for number in range(files[-1].number + 1):
                objects.put_parts(str(StagedKey(attempt, number)), _parts([f for f in files if f.number == number]))
        except BaseException:
            with suppress(KStoreError):  # the clean-up of the job deletes them
                staged_objects.remove_attempts(objects, [attempt])
            raise
    return [
        replace(
            row,
            directory=f"{stage}/{job}/{attempt}",
            objects=json.dumps([[file.number, file.position, file.crc] for file in files if file.row == at]),
        )
        for at, row in enumerate(rows)
    ]


def _placed(rows: Sequence[Staged]) -> list[_LogFile]:
    files = [
        _LogFile(f"{row.path}/{names.log_name(base)}", size, at)
        for at, row in enumerate(rows)
        for base, _, size in row.parts
    ]
    number = position = 0
    for file in files:
        if position >= OBJECT_BYTES:
            number, position = number + 1, 0
        file.number, file.position = number, position
        position += file.length
    return files


def _parts(files: Sequence[_LogFile]) -> Iterator[bytes]:
    """Yield the bytes of files in parts of one size, and set their checksums."""
    part = bytearray()
    for file in files:
        position = 0
        with fs.closing(fs.open(file.path)) as fd:
            while position < file.length:
                data = fs.pread(fd, min(PART_BYTES - len(part), file.length - position), position)
                if not data:
                    what = f"the file ends at {position}, and {file.length} bytes were staged"
                    raise StorageError(errno.EIO, what, file.path)
                file.crc = crc32c(data, file.crc)
                position += len(data)
                part += data
                if len(part) == PART_BYTES:
                    yield bytes(part)
                    part.clear()
    if part:
        yield bytes(part)
