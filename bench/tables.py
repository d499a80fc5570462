"""Write the results of a run into bench/results and the pages of docs/: `python bench/tables.py build/bench.json`.

`make bench` and `make bench-all` call it. A run replaces its file in bench/results as a whole: the machine, the date,
the commit, the scale, the load, and a table for each file of bench/. Pages show parts of these files. Between
`<!-- bench_x.py: begin -->` and `<!-- bench_x.py: end -->` stands the table of that file. Below a comment
`<!-- rows of bench: ... -->` stands one row for each of its lines: a question, or `question | what the page calls it`;
with `rows of bench without bounds` only other programs are in it.
Invariant: no figure is written by hand.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Question, Result, shown, verdicts

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results"
BOUND = "bound: "
RATIO = "time / kstore's time"
HEAD = ("question", "contestant", "median", "best", "spread", "records or calls of a round, size", RATIO, "target")


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
        f"{of['minutes']} minutes, with KSTORE_BENCH_SCALE={of['scale']:g}. Load of the machine: "
        f"{of['load_before']} before the run, {of['load_after']} at its end, the run itself included."
    )
    yield ""
    yield (
        f"One thread, unless a row or its question says otherwise; reads of columns use {of['threads']} threads by "
        "default. Median and best are those of the rounds. The spread is the slowest round minus the fastest, divided "
        "by the median."
    )
    for what, named in (("Failed, and not in the tables", of["failed"]), ("Skipped", of["skipped"])):
        if named:
            yield from ("", f"{what}: {'; '.join(named)}.")


def tables(run: dict[str, Any]) -> Iterator[str]:
    """The table of each file below its name."""
    for file, lines in by_file(run).items():
        yield from ("", f"## `bench/{file}`", "", *lines)


def missed(run: dict[str, Any]) -> Iterator[str]:
    """The targets that were missed, and how close the bound of the question comes, if it has one."""
    lines = [line for answers in by_question(run).values() if (line := missed_row([one for _, one in answers]))]
    if lines:
        yield from ("", "## Missed targets", "")
        yield (
            "Shares are shares of rates. A bound is a program that does only what its question requires. If it reaches "
            "less than 1 of the target, no program reaches the target on this machine. Of several bounds, the one that "
            "does the most work counts."
        )
        yield ""
        head = ("question", "target", "kstore / target", "bound / target", "kstore / bound", "bound")
        yield from (f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *lines))


def missed_row(contestants: list[Result]) -> tuple[str, ...] | None:
    """The row of a question that misses a target; of several missed targets the highest counts."""
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
    """The table of each file. A question that several files ask is in the table of the file with kstore's row."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for answers in by_question(run).values():
        file = next((file for file, one in answers if is_ours(one)), answers[0][0])
        found.setdefault(file, []).extend(rows([one for _, one in answers]))
    return {file: table(lines) for file, lines in found.items()}


def table(lines: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table, without empty columns."""
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


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def table_of(file: str) -> list[str]:
    """The table of a file of bench/ and the line that says which run it is from."""
    for path in sorted(RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        _, found, after = text.partition(f"## `bench/{file}`\n\n")
        if found:
            date = re.search(r"Measured on (.*?) with", text)
            link = f"[`make {path.stem}`](../bench/results/{path.name})"
            return [f"From the run of {link} on {date[1] if date else ''}:", "", *after.split("\n\n")[0].splitlines()]
    raise SystemExit(f"no results of {file}")


def answers(run: str) -> dict[str, list[dict[str, str]]]:
    """The rows of each question in the results of a run, each row by its columns."""
    found: dict[str, list[dict[str, str]]] = {}
    question = ""
    for line in (RESULTS / f"{run}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| question | contestant |"):
            head = cells_of(line)
        elif line.startswith(("| **", "|  |")):
            row = dict(zip(head, cells_of(line), strict=True))
            question = row["question"].strip("*") or question
            found.setdefault(without_threads(question), []).append(row)
    return found


def row_of(line: str, run: str, found: dict[str, list[dict[str, str]]], hidden: tuple[str, ...] = ("kstore",)) -> str:
    """One row for a question: kstore's median, and for each other program its time divided by kstore's.

    Contestants whose names start with one of `hidden` are left out.
    """
    question, _, name = line.partition(" | ")
    rows = found.get(without_threads(question), [])
    ours = next((row["median"] for row in rows if row["contestant"] == "kstore"), None)
    if ours is None:
        raise SystemExit(f"{run} has no question {question!r}")
    ratios = [(row["contestant"], row[RATIO].rstrip("x")) for row in rows if row.get(RATIO)]
    others = "; ".join(f"{one} {ratio}" for one, ratio in ratios if not one.startswith(hidden))
    return f"| {name or question} | {ours} | {others} |"


def without_threads(question: str) -> str:
    """A question without the number of threads, which depends on the machine."""
    return re.sub(r"\d+ threads", "threads", question)


def refreshed(page: str) -> str:
    """A page with its tables and rows as bench/results has them now."""

    def table_between(found: re.Match[str]) -> str:
        return "\n".join([found[1], "", *table_of(found[2]), "", found[3]])

    def rows_below(found: re.Match[str]) -> str:
        run = answers(found[2])
        hidden = ("kstore", BOUND) if found[3] else ("kstore",)
        lines = [row_of(line, found[2], run, hidden) for line in found[4].strip().splitlines()]
        return "\n".join([found[1], "| | kstore | time of others / kstore's time |", "|---|---|---|", *lines, "", ""])

    page = re.sub(r"(<!-- (bench_\w+\.py): begin -->).*?(<!-- \2: end -->)", table_between, page, flags=re.DOTALL)
    return re.sub(
        r"(<!-- rows of ([\w-]+)( without bounds)?:\n(.*?)-->\n)\n(?:\|[^\n]*\n)*\n?", rows_below, page, flags=re.DOTALL
    )


def main(path: Path) -> None:
    run = json.loads(path.read_text())
    lines = [f"# Results of `make {path.stem}`", "", *about(run), *missed(run), *tables(run)]
    (RESULTS / f"{path.stem}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"the results of {path} are in {RESULTS / path.stem}.md")
    for page in (*DOCS.glob("*.md"), *DOCS.parent.glob("README.md")):
        text = page.read_text(encoding="utf-8")
        if (new := refreshed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"and in {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
