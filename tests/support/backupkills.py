"""Lives of a process that backs up a store, each ended by SIGKILL at one of its requests.

    python backupkills.py      reads one JSON line for each life, and answers with one

This process imports everything once and forks for each life. A life opens the store that the one before has left,
changes it, and backs it up round by round. Before each round it writes a picture of the store beside it, and when the
round is acknowledged it gives the picture another name: so what must be restorable is known whenever it dies.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from kstore.copies.backups import backup_writer, round_changes
from kstore.disk import fs
from kstore.errors import ConfigWarning
from kstore.objects.open_objects import open_objects
from tests.conftest import ManualClock
from tests.support.backedup import Picture
from tests.support.backuplife import Life
from tests.support.faultyobjects import FaultyObjects
from tests.support.objectserver import Fault, Request

UNDER_WAY, ACKNOWLEDGED = "under-way.picture", "acknowledged.picture"
LIFE_MS = 60_000  # of a life's clock


def live(order: dict[str, Any]) -> None:
    """One life; `at` is the request that it dies at, `done` whether the request is done before."""
    warnings.simplefilter("ignore", ConfigWarning)
    fs.fsync = fs.fdatasync = lambda fd: None
    fs.sync_directory = lambda path, *, missing_ok=False: None
    round_changes.BESIDE_BYTES = 300 if order["life"] % 3 else 16 << 20
    backup_writer.SWEEP_PAUSE_MS = LIFE_MS
    home = Path(order["home"])
    (home / "pid").write_text(str(os.getpid()))

    def die(request: Request) -> Fault | None:
        if request.number == order["at"] and not order["done"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    def die_after(request: Request) -> None:
        if request.number == order["at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    objects = FaultyObjects(open_objects(order["url"], order.get("options"), create=True), die, die_after)
    clock = ManualClock(ManualClock().now + LIFE_MS * order["life"])
    life = Life(home, f"{order['seed']}:{order['life']}", objects, clock)
    for _ in range(order["rounds"]):
        life.change(4)
        under_way = life.picture()
        with (home / UNDER_WAY).open("wb") as file:
            pickle.dump(under_way, file)
        life.round()
        (home / UNDER_WAY).rename(home / ACKNOWLEDGED)
    life.close()


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(order)
                code = 0
            except BaseException:
                (Path(order["home"]) / "fault").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"killed": os.WIFSIGNALED(status), "status": status}), flush=True)


def pictures(home: Path, name: str) -> list[Picture]:
    """The picture of one name, if there is one."""
    path = home / name
    return [pickle.loads(path.read_bytes())] if path.exists() else []


if __name__ == "__main__":
    main()
