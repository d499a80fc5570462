"""How long does a store take to open that has committed many positions? Its internal topics are compacted meanwhile.

Twenty groups, one position each, a record a commit; then a last pass of the cleaner. Measured are the opening and the
reading of all positions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from common import Question, measure, scaled, settle
from pytest_benchmark.fixture import BenchmarkFixture

import kstore

GROUPS = [f"group-{number}" for number in range(20)]
FEW, MANY = "a thousand commits", "kstore"
OPENING = Question("opening and positions after a million commits", "time", against=((FEW, 0.5),))


@pytest.mark.parametrize(("contestant", "commits"), [(FEW, 1000), (MANY, 1_000_000)])
def test_opening(benchmark: BenchmarkFixture, tmp_path: Path, contestant: str, commits: int) -> None:
    count = commits if contestant == FEW else scaled(commits)
    with kstore.Store.open(tmp_path) as store:
        store.create_topic("orders")
        for number in range(count):
            store.commit_offsets(GROUPS[number % len(GROUPS)], {("orders", 0): number})
        store.compact("__consumer_offsets")
    settle(tmp_path)

    def run() -> list[int]:
        with kstore.Store.open(tmp_path) as store:
            return [store.committed_offsets(group)["orders", 0] for group in GROUPS]

    positions = measure(benchmark, OPENING, contestant, run, operations=1, rounds=9)
    assert positions == list(range(count - len(GROUPS), count))
