"""The bank of examples/eventsourcing.py in a process of its own, to be killed: what test_eventsourcing.py judges.

    python bankers.py transfer_for_ever|die_in_the_middle_of_a_save DIRECTORY

It loads the example under the name that an application would give it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from kstore.log.writing import _appender

EXAMPLE = Path(__file__).parents[2] / "examples" / "eventsourcing.py"
MODULE = "kstore_recorders"  # the name under which an application would have it


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


recorders = load_example()


def transfer_for_ever(directory: str) -> None:
    """Transfers between two accounts, each told once it is saved; the first life opens the accounts."""
    app = recorders.bank(directory)
    owners = {app.repository.get(each).owner: each for each in ids_of(app)}
    accounts = [owners.get(owner) or app.open(owner, 1000) for owner in ("Ada", "Blaise")]
    while True:
        app.transfer(*accounts, 1)
        print(app.recorder.max_notification_id(), flush=True)


def die_in_the_middle_of_a_save(directory: str) -> None:
    """SIGKILL when half of the bytes of a batch with two accounts are in the file."""
    app = recorders.bank(directory)
    accounts = [app.open(owner, 1000) for owner in ("Ada", "Blaise")]
    app.transfer(*accounts, 1)

    def half(fd: int, data: memoryview, position: int) -> int:
        os.pwrite(fd, bytes(data)[: len(data) // 2], position)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    _appender.set_pwrite_hook(half)
    app.transfer(*accounts, 1)


def ids_of(app: Any) -> list[UUID]:
    notifications = app.recorder.select_notifications(None, 1_000_000)
    return list(dict.fromkeys(each.originator_id for each in notifications))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
