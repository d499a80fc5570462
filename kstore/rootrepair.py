"""What can be mended in a data directory beside its partitions: checkpoint files whose text is damaged.

Lines that are whole are kept; a partition whose line is lost is recovered from its files at the next opening. The
hardest rule: these files are other partitions' too, so they are only replaced whole, while
nobody uses the directory.
"""

from __future__ import annotations

import os
import re

from kstore import checkpoint, fs
from kstore.errors import StorageError

__all__ = ["mend_root", "plan_root"]

_LINE = re.compile(rb"([a-zA-Z0-9._-]{1,249}) ([0-9]{1,10}) ([0-9]{1,18})[ \t]*")


def plan_root(root: str) -> dict[str, checkpoint.Offsets]:
    """Find the checkpoint files that do not parse, each with the lines of it that can be kept; changes nothing."""
    found = {}
    for name in checkpoint.OFFSET_CHECKPOINTS:
        try:
            checkpoint.read_offsets(root, name)
        except StorageError:
            lines = fs.read_file(os.path.join(root, name)).splitlines()
            whole = [match for line in lines if (match := _LINE.fullmatch(line)) and int(match[2]) < 2**31]
            found[name] = {(match[1].decode(), int(match[2])): int(match[3]) for match in whole}
    return found


def mend_root(root: str, plan: dict[str, checkpoint.Offsets], backup: str) -> None:
    """Write these files anew, with copies of the old ones in `backup`. `LogLockedError` when the root is in use."""
    with fs.lock_root(root, shared=False):
        fs.make_directories(backup)
        for name in plan:
            fs.write_file(os.path.join(backup, name), fs.read_file(os.path.join(root, name)))
        fs.sync_directory(backup)
        for name, offsets in plan.items():
            checkpoint.write_offsets(root, name, offsets)
