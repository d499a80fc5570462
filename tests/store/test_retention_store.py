"""Retention in a store: what its housekeeping may touch, above all in directories that a broker has filled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import cli
from tests.conftest import ManualClock

pytestmark = pytest.mark.usefixtures("no_syncs")

FOREVER = 10**15  # an age that every record has


def logs(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.log")}


def pass_over(root: Path, **settings: object) -> None:
    """One look of a store's housekeeping, long after everything was written."""
    clock = ManualClock(FOREVER)
    with kstore.Store.open(root, clock=clock, background=False, **settings) as store:
        clock.advance(30_000)
        store.run_housekeeping()
        assert store.stats()["failures"] == {}


@pytest.mark.parametrize(
    ("set_", "directory"), [("consumer-offsets", "dir"), ("transactions", "dir"), ("compaction", "after-second")]
)
def test_what_a_broker_compacts_is_not_deleted_for_its_age_or_size(
    golden: Callable[[str], Path], set_: str, directory: str
) -> None:
    """A broker keeps its topics' settings elsewhere: its own topics, and what its cleaner has gone through, tell it."""
    root = golden(set_) / directory
    compacted = ("__consumer_offsets", "__transaction_state", "__share_group_state", "compact-")
    before = {name: data for name, data in logs(root).items() if name.startswith(compacted) and data}
    assert before
    pass_over(root, retention_ms=0, retention_bytes=0, min_compaction_lag_ms=2 * FOREVER)  # no record is old enough
    after = logs(root)
    assert {name: after.get(name) for name in before} == before
    assert all(not data for name, data in after.items() if not name.startswith(compacted))


def test_the_command_line_leaves_it_alone_too(
    golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = golden("compaction") / "after-second"
    before = logs(root)
    for path in (root, root / "compact-short-0"):
        only = ["--topic=compact-short"] if path == root else []
        assert cli.main(["retain", str(path), *only, "--retention-ms=0", "--retention-bytes=0"]) == 0
        assert "cleanup.policy is compact, so neither size nor age counts" in capsys.readouterr().out
    assert logs(root) == before


def test_who_knows_better_says_so(golden: Callable[[str], Path]) -> None:
    root = golden("compaction") / "after-second"
    with kstore.Store.open(root, background=False) as store:
        assert store.topic_config("compact-short").cleanup_policy == ("compact",)
        store.update_topic_config("compact-short", {"cleanup.policy": "delete"})
    pass_over(root, retention_bytes=0)
    assert not any(data for name, data in logs(root).items() if name.startswith("compact-short"))
    assert any(data for name, data in logs(root).items() if name.startswith("compact-long"))


def test_an_unreadable_cleaner_checkpoint_makes_all_of_a_brokers_topics_compacted(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = golden("retention") / "after-restart"
    shutil.copytree(root, root.with_name("copy"))
    pass_over(root, retention_bytes=0)
    assert not any(logs(root).values())
    root = root.with_name("copy")
    before = logs(root)
    (root / "cleaner-offset-checkpoint").write_text("0\nwhat?\n")
    with kstore.Store.open(root, "r") as store:
        assert store.topic_config("by-time").cleanup_policy == ("compact",)
        assert list(store.log("by-time", 0).read())
    assert "cleaner-offset-checkpoint" in caplog.text
    assert logs(root) == before
