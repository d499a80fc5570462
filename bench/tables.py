"""Writes the tables of docs/performance.md from what a run has measured: `python bench/tables.py build/bench.json`.

`make bench` and `make bench-all` do it at their end. A run's tables stand between two comments that name its file, and
are replaced as a whole: no figure in them is written by hand, and none stays from another run. Above them stand the
machine, the time, the commit, the scale, the threads and how busy the machine was. Another page may have the table of
one file of bench/ between two comments that name that file.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Question, Result, shown, verdicts

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
BOUND = "bound: "
HEAD = (
    "question", "contestant", "median", "best", "spread", "a round: records or calls, size", "its time by kstore's",
    "asked for",
)  # fmt: skip


def results(run: dict[str, Any]) -> list[tuple[str, Result]]:
    """Each result with the file of bench/ that asked."""
    found = []
    for row in run["results"]:
        asked = row["question"]
        against = tuple((peer, ratio) for peer, ratio in asked["against"])
        question = Question(asked["text"], asked["unit"], asked["limit"], against)
        one = Result(
            question, row["contestant"], row["operations"], row["size_bytes"], tuple(row["rounds"]), row["asked_by"]
        )
        found.append((row["asked_by"], one))
    return found


def about(run: dict[str, Any]) -> Iterator[str]:
    """The machine and the run, in sentences."""
    of = run["run"]
    yield (
        f"Machine: {of['machine']}; {of['processors']} processors, {of['memory_gib']} GiB of memory. Measured on "
        f"{of['date']} with kstore at commit {of['commit']} of {of['commit_date']}, by `{of['command']}` in "
        f"{of['minutes']} minutes, with KSTORE_BENCH_SCALE={of['scale']:g}. Programs that waited for a processor: "
        f"{of['load_before']} before the run, {of['load_after']} at its end, the run itself included."
    )
    yield ""
    yield (
        f"Threads: one, unless a row or its question says otherwise; `read_columns` and its like have {of['threads']} "
        "where none are named. "
        "Median and best of the rounds; the spread is the slowest round less the fastest, by the median."
    )
    for what, named in (("Failed, and so not in the tables", of["failed"]), ("Left out", of["skipped"])):
        if named:
            yield from ("", f"{what}: {'; '.join(named)}.")


def tables(run: dict[str, Any]) -> Iterator[str]:
    """The table of each file below its name."""
    for file, lines in by_file(run).items():
        yield from ("", f"### `bench/{file}`", "", *lines)


def missed(run: dict[str, Any]) -> Iterator[str]:
    """What was asked for and not reached, and how far the bound of the question comes, where it has one."""
    lines = [line for answers in by_question(run).values() if (line := missed_row([one for _, one in answers]))]
    if lines:
        yield from ("", "### Asked for, and missed", "")
        yield (
            "The share of what was asked is that of rates. A bound does only what its question cannot leave out: where "
            "it comes to less than 1 of what was asked, the machine forbids that. Of several bounds the one that does "
            "most counts."
        )
        yield ""
        head = ("question", "asked for", "kstore, of it", "bound, of it", "kstore, of the bound", "bound")
        yield from (f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *lines))


def missed_row(contestants: list[Result]) -> tuple[str, ...] | None:
    """A question's row among those that are missed; the hardest of what it asks for counts."""
    ours = next(filter(is_ours, contestants), None)
    failed = [] if ours is None else [one for one in verdicts(ours, contestants) if not one.is_met]
    if ours is None or not failed:
        return None
    hardest = min(one.seconds for one in failed)
    asked = "; ".join(one.asked for one in failed)
    row = (ours.question.text, asked, f"{hardest / ours.seconds():.2f}")
    bounds = [one for one in contestants if one.contestant.startswith(BOUND)]
    if not bounds:
        return (*row, "", "", "")
    bound = max(bounds, key=Result.seconds)
    shares = f"{hardest / bound.seconds():.2f}", f"{bound.seconds() / ours.seconds():.2f}"
    return (*row, *shares, bound.contestant.removeprefix(BOUND))


def by_question(run: dict[str, Any]) -> dict[str, list[tuple[str, Result]]]:
    """The results of each question, by its text."""
    questions: dict[str, list[tuple[str, Result]]] = {}
    for file, one in results(run):
        questions.setdefault(one.question.text, []).append((file, one))
    return questions


def by_file(run: dict[str, Any]) -> dict[str, list[str]]:
    """A table for each file; a question that several files ask is where kstore answers it."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for answers in by_question(run).values():
        file = next((file for file, one in answers if is_ours(one)), answers[0][0])
        found.setdefault(file, []).extend(rows([one for _, one in answers]))
    return {file: table(lines) for file, lines in found.items()}


def table(lines: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table, without the columns that say nothing."""
    used = [number for number in range(len(HEAD)) if any(line[number] for line in lines)]
    shown_lines = [[line[number] for number in used] for line in (HEAD, ("---",) * len(HEAD), *lines)]
    return [f"| {' | '.join(cells)} |" for cells in shown_lines]


def is_ours(one: Result) -> bool:
    return one.contestant == "kstore"


def rows(contestants: list[Result]) -> Iterator[tuple[str, ...]]:
    """A question's rows: kstore's, then the others, the fastest first."""
    ours = next(filter(is_ours, contestants), None)
    question = f"**{contestants[0].question.text}**"
    for one in sorted(contestants, key=lambda one: (not is_ours(one), one.seconds())):
        ratio = f"{one.seconds() / ours.seconds():.2f}x" if ours is not None and one is not ours else ""
        size = f", {one.size_bytes / 1e6:,.1f} MB" if one.size_bytes else ""
        yield (
            question,
            one.contestant.replace("|", "/"),
            shown(one, statistics.median),
            shown(one, min),
            f"{one.spread:.0%}" if len(one.rounds) > 1 else "one round",
            f"{one.operations:,}{size}",
            ratio,
            "; ".join(map(str, verdicts(one, contestants))) if one is ours else "",
        )
        question = ""


def written(page: str, name: str, lines: list[str]) -> str:
    """The page with the lines between the comments of that run."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise SystemExit(f"no page has a place for {name}: {begin} and {end}")
    return before + "\n".join([begin, "", *lines, "", end]) + after


def main(path: Path) -> None:
    run = json.loads(path.read_text())
    lines = [*about(run), *missed(run), *tables(run)]
    PAGE.write_text(written(PAGE.read_text(), path.stem, lines))
    print(f"the tables of {path} are in {PAGE}")
    of = run["run"]
    source = f"From the run of `{of['command']}` on {of['date']} that [performance.md](performance.md) tells of:"
    for page in DOCS.glob("*.md"):
        for file, table in by_file(run).items():
            if f"<!-- {file}: begin -->" in (text := page.read_text()):
                page.write_text(written(text, file, [source, "", *table]))
                print(f"that of {file} is in {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
