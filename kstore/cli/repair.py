"""`kstore repair`: say what would be kept and lost of damaged logs, and mend them when told to."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from kstore import fs
from kstore.cli import options, output, places
from kstore.cli.progress import Progress
from kstore.errors import LogLockedError
from kstore.repair import Plan, plan_repair, repair
from kstore.rootrepair import mend_root, plan_root
from kstore.verify import targets

__all__ = ["run"]

_ABOUT = """\
Mend logs. Without --yes nothing is changed: what would be kept and lost is printed. With it, copies of all files
that change go into a backup first; then bad bytes are cut out, later sound batches stay with their offsets, indexes
are built anew, and checkpoints that no longer hold are set right. A directory in use is left alone. Exit code 1 if
something is wrong and was not mended."""
_EXAMPLES = """\
examples:
  kstore repair data/events-0
  kstore repair --yes data/events-0
  kstore repair --yes --backup /mnt/backup data
"""


def run(arguments: Sequence[str]) -> int:
    """Say what would be done, and do it when told to; 1 if something wrong is left."""
    parser = options.Parser(
        prog="kstore repair",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC or DIR/TOPIC-P")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument(
        "--backup", metavar="DIR", help="where copies go (default: a new directory beside the data directory)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line for each partition")
    asked = parser.parse_args(arguments)
    left = 0
    for target in targets(asked.paths):
        if target.kind == "file":
            error = NotADirectoryError(20, "single files are not mended: give the partition")
            raise fs.storage_error(error, target.path)
        left += _one(target.path, asked) if target.kind == "partition" else _root(target.path, asked)
    return 1 if left else 0


def _one(path: str, asked: argparse.Namespace) -> int:
    """One partition; how many errors are left."""
    directory = os.path.abspath(path)
    try:
        with (
            fs.lock_root(os.path.dirname(directory), shared=True),
            fs.lock_partition(directory),
            Progress("check", places.log_bytes(directory)) as bar,
        ):
            plan = plan_repair(directory, bar.add)
    except LogLockedError as error:
        if asked.yes:
            raise
        # Nothing is changed, and what is being written now may look wrong.
        raise LogLockedError(error.errno, f"{error.strerror}: a log in use is not looked at", path) from error
    if not plan.findings:
        if not asked.json:
            print(f"{path}: nothing is wrong")
        else:
            print(json.dumps(_facts(plan, None, 0)))
        return 0
    backup = _backup(directory, asked.backup) if asked.yes and not plan.is_empty else None
    if not asked.json:
        print(f"{path}: {output.painted(output.count(len(plan.findings), 'error'), 'red')}")
        print("\n".join(f"  {line}" for line in plan.lines()))
    left = len(plan.findings)
    if backup is not None:
        with Progress("repair", places.log_bytes(directory)) as bar:
            left = len(repair(plan, backup, bar.add))
        if not asked.json:
            print(f"  done; what was there is in {backup}" + (f"; errors that are left: {left}" if left else ""))
    elif plan.is_empty and not asked.json:
        print("  none of them can be mended")
    elif not asked.json:
        print("  nothing was changed: --yes does it")
    if asked.json:
        print(json.dumps(_facts(plan, backup, left)))
    return left


def _root(root: str, asked: argparse.Namespace) -> int:
    """The checkpoint files of a data directory; how many are left as they are."""
    plan = plan_root(root)
    if not plan:
        return 0
    backup = _backup(os.path.join(os.path.abspath(root), "root"), asked.backup) if asked.yes else None
    if backup is not None:
        mend_root(os.path.abspath(root), plan, backup)
    steps = [f"{name}: write it anew with the {len(lines)} lines that are whole" for name, lines in plan.items()]
    if asked.json:
        print(json.dumps({"path": root, "errors": len(plan), "steps": steps, "backup": backup}))
    else:
        done = "nothing was changed: --yes does it" if backup is None else f"done; what was there is in {backup}"
        print("\n  ".join([f"{root}: {output.count(len(plan), 'error')}", *steps, done]))
    return len(plan) if backup is None else 0


def _backup(directory: str, given: str | None) -> str:
    if given is not None:
        return os.path.abspath(given)
    root = os.path.dirname(directory)
    stem = f"{root}-backup-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    name, number = stem, 1
    while fs.exists(os.path.join(name, os.path.basename(directory))):
        number += 1
        name = f"{stem}-{number}"
    return name


def _facts(plan: Plan, backup: str | None, left: int) -> dict[str, Any]:
    return {
        "path": plan.path,
        "errors": len(plan.findings),
        "errors_left": left,
        "steps": plan.lines()[:-2] if plan.findings else [],
        "kept": {"batches": plan.kept_batches, "records": plan.kept_records, "bytes": plan.kept_bytes},
        "lost": {
            "bytes": plan.lost_bytes,
            "offsets": [[low, high - 1] for low, high in plan.lost],
            "records_at_most": plan.most_lost_records,
        },
        "backup": backup,
    }
