"""The files that `kstore ingest --once` has loaded: a topic with one record for each.

The record is staged with the file's rows, so that one commit decides about both. As records of a topic they are in
backups, and in copies that follow the store. Adding one takes a time that does not grow with their number.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass

from kstore.errors import StorageError
from kstore.files.checkpoint import format_topic_id
from kstore.store.store import Store

__all__ = ["SETTINGS", "TOPIC", "IngestedFiles", "InputFile"]

TOPIC = "__kstore_ingested_files"
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The topic's own settings: a file whose record was deleted would be loaded again."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """What identifies a file: its name without a directory, its size and its SHA-256."""

    file: str
    size: int
    sha256: str

    @classmethod
    def of(cls, path: str) -> InputFile:
        """Read a file."""
        digest, size = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                size += len(data)
        name = os.fsencode(os.path.basename(path)).decode(errors="backslashreplace")
        return cls(name, size, digest.hexdigest())

    def record(self, topic: str, topic_id: uuid.UUID, records: int) -> tuple[bytes, bytes]:
        """Return the key and the value of the record that says that the file was loaded."""
        value = {"topic": topic, "topic_id": format_topic_id(topic_id), **asdict(self), "records": records}
        return f"{topic}/{self.file}".encode(), json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class IngestedFiles:
    """The files that were loaded into one topic. Not thread-safe.

    The topic's id counts, not its name: a topic that was deleted and made anew has none of the files.
    """

    def __init__(self, store: Store, topic_id: uuid.UUID) -> None:
        """Read the records of the store. Raises `StorageError` if one of them is no such record."""
        self._files: set[InputFile] = set()
        if TOPIC in store.topics:
            for record in store.log(TOPIC, 0).read():
                try:
                    found = json.loads(record.value or b"")
                    if found["topic_id"] == format_topic_id(topic_id):
                        self._files.add(InputFile(found["file"], found["size"], found["sha256"]))
                except (ValueError, KeyError, TypeError, RecursionError):
                    what = f"the record at offset {record.offset} of {TOPIC} names no file that was loaded"
                    raise StorageError(5, what, store.log(TOPIC, 0).path) from None
        self._names = {each.file for each in self._files}

    def __contains__(self, file: InputFile) -> bool:
        return file in self._files

    def has_name(self, file: InputFile) -> bool:
        """Return whether a file of this name was loaded."""
        return file.file in self._names

    def add(self, file: InputFile) -> None:
        self._files.add(file)
        self._names.add(file.file)
