"""How do costs grow with what one store holds? `python bench/scale.py [QUESTION ...] [--up-to N] [--write]`

Each question makes a store or a log of several sizes and measures each in fresh processes, one at a time. What fills it
ends by `os._exit`, as in a crash, and the next process opens what is left. A
table is printed for each question; with `--write` it goes into bench/results/scale.md, between two markers.

A cell is processor time (user and system, all threads of the process) and behind it, in brackets, the time by the
clock, which other tasks of the machine lengthen. The last row is the exponent x of "grows as size ** x" between the two
largest sizes: 1 is linear for a whole, 0 is constant for one of many. Syncs are left out, since how long they take is
the disk's; a step that has many of them says how many. Nothing is kept: a size takes at most 4 GiB of disk.

The questions themselves are in scale_questions.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scale_questions import QUESTIONS, Cell, Question, run_phase

PAGE = Path(__file__).parent / "results" / "scale.md"
Row = dict[str, Cell]


def measure(question: Question, size: int, directory: str | None = None) -> Row:
    """The cells of one size, each phase measured in a process of its own."""
    row: Row = {}
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as root:
        for phase in question.phases:
            command = [sys.executable, __file__, "--phase", question.name, phase.__name__, str(size), root]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{question.name} {phase.__name__} {size}: exit code {done.returncode}")
            row |= {name: Cell(**fields) for name, fields in json.loads(done.stdout.splitlines()[-1]).items()}
        shutil.rmtree(root, ignore_errors=True)
    return row


def exponent(sizes: tuple[int, int], cells: tuple[Cell, Cell]) -> str:
    """How a cost grows from one size to the next, as text; "" where the smaller is too small to tell."""
    smaller, larger = cells
    if not smaller.amount or not larger.amount or (smaller.unit == "s" and larger.total < 0.02):
        return ""
    return f"{math.log(larger.amount / smaller.amount) / math.log(sizes[1] / sizes[0]):.2f}"


def table(question: Question, rows: dict[int, Row]) -> str:
    """The Markdown table of a question; sizes down, steps across."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [[question.counted, *names], ["---:"] * (len(names) + 1)]
    lines += [[f"{size:,}", *(str(row[name]) if name in row else "" for name in names)] for size, row in rows.items()]
    if len(rows) > 1:
        last = tuple(list(rows)[-2:])
        grown = [exponent(last, tuple(rows[size][name] for size in last)) for name in names]  # type: ignore[arg-type]
        lines.append(["growth", *grown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def machine() -> str:
    """What the figures come from: the machine, and the commit."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    git = ["git", "-C", str(PAGE.parent), "log", "-1", "--format=%cs"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "no checkout"
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} processors ({model}), {gib:.0f} GiB, Linux {platform.release()}, Python "
        f"{platform.python_version()}; code of {commit}; load when it ended {load:.1f}"
    )


def write(page: Path, name: str, text: str) -> None:
    """Put a table between the markers of its question."""
    begin, end = f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    before = page.read_text(encoding="utf-8")
    if not pattern.search(before):
        raise SystemExit(f"{page} has no markers of {name}")
    page.write_text(pattern.sub(lambda _: f"{begin}{text}{end}", before), encoding="utf-8")


def main(arguments: Iterable[str]) -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}; all by default")
    parser.add_argument("--up-to", type=int, default=10**12, metavar="N", help="leave larger sizes out")
    parser.add_argument("--write", action="store_true", help="put the tables into bench/results/scale.md")
    parser.add_argument("--directory", help="where the stores are made, for a while; the system's own by default")
    chosen = parser.parse_args(list(arguments))
    if unknown := set(chosen.questions) - set(QUESTIONS):
        parser.error(f"there is no question {', '.join(sorted(unknown))}")
    for name in chosen.questions or QUESTIONS:
        question = QUESTIONS[name]
        rows: dict[int, Row] = {}
        for size in (size for size in question.sizes if size <= chosen.up_to):
            rows[size] = measure(question, size, chosen.directory)
            print(f"{name} {size:,}: " + "; ".join(f"{step} {cell}" for step, cell in rows[size].items()), flush=True)
            text = f"\n{table(question, rows)}\n{machine()}.\n\n"
            if chosen.write:  # each size as it comes: the largest takes long
                write(PAGE, name, text)
        if rows:
            print(f"\n{question.text}\n{text}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--phase"]:
        run_phase(*sys.argv[2:])
    else:
        main(sys.argv[1:])
