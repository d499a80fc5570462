"""`kstore repair`: says what would be kept and lost of damaged logs, and with --yes repairs them."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.cli.commands import mounted_paths
from kstore.cli.progress import Progress
from kstore.disk import fs
from kstore.errors import LogLockedError
from kstore.files import names
from kstore.store import catalog
from kstore.tools.check.repair import plan_repair, repair
from kstore.tools.check.repair_plan import Plan
from kstore.tools.check.repair_root import mend_root, plan_root
from kstore.tools.check.verify import Target, targets

__all__ = ["run"]

_ABOUT = """\
Repair logs. Without --yes nothing is changed: the command prints what would be kept and lost. With --yes it first
copies all files that change into a backup. Then it cuts out damaged bytes, keeps later valid batches with their
offsets, rebuilds indexes, and corrects checkpoints. A directory in use is refused. Exit code 1 if an error is left."""
_EXAMPLES = """\
examples:
  kstore repair data/events-0
  kstore repair --yes data/events-0
  kstore repair --yes --backup /mnt/backup data
"""


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand and return its exit code: 1 if an error is left."""
    parser = command_options.Parser("repair", _ABOUT, _EXAMPLES)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC or DIR/TOPIC-P")
    parser.add_argument("--yes", action="store_true", help="repair the logs")
    parser.add_argument(
        "--backup", metavar="DIR", help="a new or empty directory for the copies (default: next to the data directory)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line for each partition")
    parsed = parser.parse_args(arguments)
    mounted_paths.refuse_urls(*parsed.paths, *filter(None, [parsed.backup]))
    left = 0
    wanted = targets(parsed.paths)
    roots = [target.path for target in wanted if target.kind == "root"]
    if parsed.backup is not None:
        _refuse_backup(parsed.backup, wanted)
    for target in wanted:
        if target.kind == "file":
            error = NotADirectoryError(20, "single files are not mended: give the partition")
            raise fs.storage_error(error, target.path)
        left += _one(target.path, parsed) if target.kind == "partition" else _root(target.path, roots, parsed)
    return 1 if left else 0


def _one(path: str, parsed: argparse.Namespace) -> int:
    """Plan the repair of one partition, with --yes carry it out; return how many errors remain."""
    directory = os.path.abspath(path)
    try:
        with (
            fs.lock_root(os.path.dirname(directory), shared=True),
            fs.lock_partition(directory),
            Progress("check", command_paths.log_bytes(directory)) as bar,
        ):
            plan = plan_repair(directory, bar.add)
    except LogLockedError as error:
        if parsed.yes:
            raise
        # A batch that is being written may look damaged.
        raise LogLockedError(error.errno, f"{error.strerror}: a log in use is not checked", path) from error
    if not plan.findings:
        if not parsed.json:
            print(f"{escaped(path)}: nothing is wrong")
        else:
            print(json.dumps(_facts(plan, None, 0)))
        return 0
    backup = _backup(directory, parsed.backup) if parsed.yes and not plan.is_empty else None
    if not parsed.json:
        print(f"{escaped(path)}: {output.painted(output.count(len(plan.findings), 'error'), 'red')}")
        print("\n".join(f"  {escaped(line)}" for line in plan.lines()))
    left = len(plan.findings)
    if backup is not None:
        with Progress("repair", command_paths.log_bytes(directory)) as bar:
            left = len(repair(plan, backup, bar.add))
        if not parsed.json:
            print(f"  done; what was there is in {backup}" + (f"; errors that are left: {left}" if left else ""))
    elif plan.is_empty and not parsed.json:
        print("  none of them can be mended")
    elif not parsed.json:
        print("  nothing was changed: --yes does it")
    if parsed.json:
        print(json.dumps(_facts(plan, backup, left)))
    return left


def _root(root: str, roots: Sequence[str], parsed: argparse.Namespace) -> int:
    """Plan the repair of a data directory's own files, with --yes carry it out; return how many errors remain."""
    plan = plan_root(root, roots)
    if not plan.errors:
        if not parsed.json and not catalog.look([root]).entries:
            print(f"{escaped(root)}: no partition is here")
        return 0
    can_mend = bool(plan.names or plan.missing)
    backup = _backup(os.path.join(os.path.abspath(root), "root"), parsed.backup) if parsed.yes and can_mend else None
    if backup is not None:
        plan = mend_root(os.path.abspath(root), roots, backup)
    left = plan.errors if backup is None else len(plan.by_hand)
    if parsed.json:
        facts = {"path": root, "errors": plan.errors, "errors_left": left, "steps": plan.steps}
        print(json.dumps({**facts, "by_hand": plan.by_hand, "backup": backup}))
        return left
    lines = [*plan.steps, *(f"cannot be mended: {error}" for error in plan.by_hand)]
    if can_mend:
        done = "nothing was changed: --yes does it" if backup is None else f"done; what was there is in {backup}"
        lines.append(done + (f"; errors that are left: {left}" if backup is not None and left else ""))
    first = f"{escaped(root)}: {output.painted(output.count(plan.errors, 'error'), 'red')}"
    print("\n  ".join([first, *map(escaped, lines)]))
    return left


def _refuse_backup(given: str, mended: Sequence[Target]) -> None:
    """Raise `StorageError` for a backup directory that would overwrite files, or look like a partition."""
    real = os.path.realpath(given)
    if fs.exists(real) and fs.listdir(real):
        error = OSError(errno.ENOTEMPTY, "the backup would overwrite existing files; name a new directory")
        raise fs.storage_error(error, given)
    names_partition = names.is_partition_name(os.path.basename(real))
    for target in mended:
        place = os.path.realpath(target.path)
        beside = target.kind == "partition" and names_partition and os.path.dirname(real) == os.path.dirname(place)
        if beside or os.path.commonpath([real, place]) == place:
            error = OSError(
                errno.EINVAL, f"the backup would be inside a repaired directory, or be a partition next to {place}"
            )
            raise fs.storage_error(error, given)


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
