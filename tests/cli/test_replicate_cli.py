"""`kstore replicate` and `kstore become-leader`: the story of a failover in commands, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.copycommands import content, facts_until
from tests.support.copycommands import run as run
from tests.support.copycommands import source as source

pytestmark = pytest.mark.usefixtures("no_syncs")

KSTORE = (sys.executable, "-m", "kstore")


def batches(root: Path) -> dict[str, bytes]:
    """The bytes of all segments' logs."""
    return {name: data for name, data in content(root).items() if name.endswith(".log")}


# Once


def test_a_copy_has_the_same_bytes_and_the_source_is_untouched(
    source: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    before = content(source)
    said = run("replicate", source, tmp_path / "copy")
    assert [line.split()[0] for line in said.splitlines()[:4]] == ["partition", "orders-0", "orders-1", "payments-0"]
    assert "3 partitions, caught up" in said
    assert batches(tmp_path / "copy") == batches(source)
    assert content(source) == before


def test_a_second_run_goes_on_where_the_first_ended(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    run("replicate", source, tmp_path / "copy")
    with kstore.Store.open(source, background=False) as store:
        store.append("payments", b"1.00")
    facts = json.loads(run("replicate", "--json", source, tmp_path / "copy"))
    assert facts["partitions"]["payments-0"]["log_end_offset"] == 2
    assert batches(tmp_path / "copy") == batches(source)


def test_a_topic_that_is_not_there_is_refused_unless_it_may_come(
    source: Path, tmp_path: Path, run: Callable[..., str]
) -> None:
    copy = tmp_path / "copy"
    said = run("replicate", source, copy, "--topic", "payment", code=1)
    assert said == f"kstore replicate: there is no topic 'payment' in {source}\n"
    assert not copy.exists()
    run("replicate", source, copy, "--topic", "payments")
    with kstore.Store.open(source, background=False) as store:
        store.delete_topic("payments")
    run("replicate", source, copy, "--topic", "payments")  # the copy has it, and its deletion is copied
    with kstore.Store.open(copy, "r") as store:
        assert "payments" not in store.topics


def test_a_source_without_a_file_of_a_store_is_told_as_that(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "empty").mkdir()
    assert "is gone, or empty as if its disk were not mounted" in run(
        "replicate", tmp_path / "empty", tmp_path / "copy", code=1
    )


def test_only_the_topics_that_were_named_are_copied(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    assert "payments-0" in run("replicate", source, tmp_path / "copy", "--topic", "payments")
    with kstore.Store.open(tmp_path / "copy", "r") as copy:
        assert [topic for topic in copy.topics if not topic.startswith("__")] == ["payments"]


# Failover


def test_the_story_of_a_failover(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    """Copied; the leader goes on alone and dies; the copy takes over; the old leader is cut, and the cut is kept."""
    copy, saved = tmp_path / "copy", tmp_path / "cut"
    run("replicate", source, copy)
    assert "follower" in run("append", copy / "payments-0", code=1)
    with kstore.Store.open(source, background=False) as store:
        store.append("payments", b"never copied")
    said = run("become-leader", copy)
    assert [line.split()[:1] for line in said.splitlines()[1:4]] == [["orders-0"], ["orders-1"], ["payments-0"]]
    assert said.splitlines()[3].split() == ["payments-0", "1", "1"]
    assert str(source) in said.splitlines()[-1]
    with kstore.Store.open(copy, background=False) as store:
        store.append("payments", b"from the new leader")
    said = run("replicate", copy, source, "--save-truncated", saved)
    assert "payments-0: cut offsets 1 to 1 (1 record), which the leader does not have, kept in " in said
    assert batches(source) == batches(copy)
    (kept,) = saved.rglob("*.log")
    assert kept.name == f"{1:020}.log"
    (batch,) = kstore.decode_batches(kept.read_bytes())
    assert [record.value for record in batch] == [b"never copied"]


# Following, in a process


def following(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*KSTORE, "replicate", *map(str, arguments), "--follow", "--json", "--show-every", "50ms"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ends(facts: dict[str, Any]) -> dict[str, int]:
    return {name: part["log_end_offset"] for name, part in facts["partitions"].items() if "log_end_offset" in part}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_follower_ends_cleanly_at_a_signal(source: Path, tmp_path: Path, number: int, code: int) -> None:
    with following(source, tmp_path / "copy") as process:
        facts_until(process, lambda facts: ends(facts).get("payments-0") == 1)
        process.send_signal(number)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == code
    assert batches(tmp_path / "copy") == batches(source)
    with kstore.Log.open(tmp_path / "copy" / "payments-0", "r") as log:
        assert log.recovery.clean


def failures(facts: dict[str, Any]) -> list[str]:
    """What a look at files on the move has found: it is tried again."""
    return [*facts["failures"], *(name for name, partition in facts["partitions"].items() if partition["failure"])]


def test_a_source_that_stands_still_is_told_from_one_that_is_gone(source: Path, tmp_path: Path) -> None:
    with following(source, tmp_path / "copy") as process:
        with kstore.Store.open(source) as store:
            facts_until(process, lambda facts: facts["source"] == "followed")
            store.append("payments", b"1.00")
            facts_until(process, lambda facts: ends(facts).get("payments-0") == 2)
        facts_until(process, lambda facts: facts["source"] == "no writer")
        shutil.move(source, tmp_path / "elsewhere")
        facts_until(process, lambda facts: facts["source"] == "gone")
        shutil.move(tmp_path / "elsewhere", source)
        facts_until(process, lambda facts: facts["source"] == "no writer" and not failures(facts))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# Bad input: one line, exit code 1, and nothing overwritten


def refused(run: Callable[..., str], target: Path, *arguments: object) -> str:
    """The complaint of a call that changes nothing of the target."""
    before = content(target)
    said = run(*arguments, code=1)
    assert content(target) == before
    return said


def test_a_ring_is_refused(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    run("replicate", source, tmp_path / "b")
    run("replicate", tmp_path / "b", tmp_path / "c")
    said = refused(run, source, "replicate", tmp_path / "c", source)
    assert str(source) in said


@pytest.mark.parametrize("target", ["data", "data/inside", "."])
def test_a_source_and_a_target_that_overlap_are_refused(
    source: Path, tmp_path: Path, run: Callable[..., str], target: str
) -> None:
    assert "kstore replicate: " in refused(run, source, "replicate", source, tmp_path / target)


def test_a_target_with_other_data_is_refused(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    with kstore.Store.open(tmp_path / "other", background=False) as store:
        store.create_topic("payments")
        store.append("payments", b"another topic of this name")
    said = refused(run, tmp_path / "other", "replicate", source, tmp_path / "other")
    assert "payments" in said
    assert "id" in said


def test_epochs_that_go_back_are_refused(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    run("replicate", source, tmp_path / "copy")
    run("become-leader", tmp_path / "copy")
    assert "epoch" in refused(run, tmp_path / "copy", "replicate", source, tmp_path / "copy")


def test_a_missing_source_is_one_line(tmp_path: Path, run: Callable[..., str]) -> None:
    assert "none" in run("replicate", tmp_path / "none", tmp_path / "copy", code=1)
    assert not (tmp_path / "copy").exists()
    assert "required" in run("replicate", tmp_path / "none", code=2)


def test_a_topic_that_was_made_again_stops_alone(source: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    run("replicate", source, tmp_path / "copy")
    with kstore.Store.open(source, background=False) as store:
        store.delete_topic("payments")
        store.create_topic("payments")
        store.append("orders", b"one more", key=b"customer 1")
    before = batches(tmp_path / "copy")["payments-0/00000000000000000000.log"]
    assert "payments" in run("replicate", source, tmp_path / "copy", code=1)
    assert batches(tmp_path / "copy")["payments-0/00000000000000000000.log"] == before


def test_a_batch_that_is_larger_than_a_segment_of_now_stops_its_partition_alone(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("large")
        store.create_topic("small")
        store.append("large", b"x" * 5000)
        store.append("small", b"y")
        store.update_topic_config("large", {"segment.bytes": "2000"})
    assert "large-0" in run("replicate", tmp_path / "data", tmp_path / "copy", code=1)
    with kstore.Store.open(tmp_path / "copy", "r") as copy:
        assert [copy.log(topic, 0).log_end_offset for topic in ("large", "small")] == [0, 1]
