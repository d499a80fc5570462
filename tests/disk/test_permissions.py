"""Modes of new files and directories: what the process's umask leaves of 0666 and 0777, for every one that is made."""

from __future__ import annotations

import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WORK = """
    import os, sys
    from pathlib import Path
    os.umask(int(sys.argv[2], 8))

    from kstore import Log, Store, cli, spark as ks
    from kstore.spark.task_attempt import Attempt

    path = Path(sys.argv[1])
    root = path / "above" / "root"
    with Store.open(root, background=False, segment_bytes=2048, file_delete_delay_ms=0) as store:
        store.create_topic("t", 2, config={"retention.ms": "-1"})
        for number in range(100):
            store.append("t", b"x" * 50, partition=0)
        store.log("t", 0).delete_records(30)
        store.run_housekeeping()
        store.commit_offsets("group", {("t", 0): 50})
        with store.producer(transactional_id="id") as producer, producer.transaction() as transaction:
            transaction.append("t", b"in a transaction", partition=0)
        made = ks.stage(store, topic="t", partitions=2)
        manifest = list(made([(b"k%d" % number, b"v") for number in range(10)]))
        staged = sorted(str(each) for each in Path(made.directory).rglob("*"))
        for each in [made.directory, *staged]:
            print(oct(os.stat(each).st_mode), each)
        store.adopt(manifest, txn=("a", 1), rename_bytes=0)
    with Log.open(path / "alone" / "l-0", index_interval_bytes=10) as log:
        log.append_many([b"one", b"two"])
        log.truncate_to(1)
    damaged = path / "alone" / "l-0" / ("0" * 20 + ".log")
    damaged.write_bytes(damaged.read_bytes() + b"damage" * 100)
    (path / "alone" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    cli.main(["repair", "--yes", "--backup", str(path / "backup"), str(path / "alone" / "l-0")])
    cli.main(["export", str(root / "t"), "--to", str(path / "export.jsonl")])
    for number in (1, 2):  # what is replaced has the mode of what is new
        with Store.open(root, background=False) as store:
            store.append("t", b"again", partition=1)
"""


def modes_below(path: Path) -> dict[str, int]:
    return {str(each.relative_to(path)): stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*")}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027, 0o002, 0o000], ids=oct)
def test_every_new_file_and_directory_has_what_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "world"
    path.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORK), str(path), oct(umask)[2:]],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = modes_below(path)
    assert {"above/root/kstore-topics.json", "above/root/t-0/partition.metadata", "export.jsonl"} <= set(found)
    for name, mode in found.items():
        whole = 0o777 if (path / name).is_dir() else 0o666
        assert mode == whole & ~umask, (name, oct(mode))
    staged = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("0o")]
    assert any(name.endswith(".log") for _, name in staged)
    for mode, name in staged:
        whole = 0o777 if stat.S_ISDIR(int(mode, 8)) else 0o666
        assert stat.S_IMODE(int(mode, 8)) == whole & ~umask, (name, mode)
