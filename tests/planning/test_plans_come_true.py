"""What a plan foretells happens: the same batches at the same times, appended to a real log with a moved clock."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kstore
from kstore.explained.explained_plan import Load
from kstore.planning.load_stretches import Stretch, stretches
from tests.conftest import examples
from tests.planning.lived_logs import (
    START_MS,
    Batch,
    Lived,
    checks_of,
    disk_at,
    foretold,
    live,
    simulated,
    stretches_of,
)

pytestmark = [
    pytest.mark.usefixtures("no_syncs"),
    pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning"),
]
SPARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
MOST_CHECKS, MOST_BATCHES = 40, 120


@st.composite
def batches_at_times(draw: st.DrawFn) -> list[Batch]:
    """Batches of a few shapes, mostly close to each other, with timestamps around the clock."""
    ms, found = START_MS, []
    gaps = draw(st.sampled_from([(0, 1, 2), (10, 50), (1000, 5000), (1, 1000, 60_000)]))
    skew = draw(st.sampled_from([0, 0, 10, 3000, 100_000]))
    for _ in range(draw(st.integers(1, 60))):
        ms += draw(st.sampled_from(gaps))
        stamp = ms - draw(st.integers(-skew // 10, skew)) if skew else ms
        found.append(Batch(ms, stamp, draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([0, 30, 100]))))
    return found


SETTINGS = {
    "segment_bytes": st.sampled_from([600, 1000, 4000, 1 << 20]),
    "segment_ms": st.sampled_from([1, 1000, 10_000, 300_000, 1 << 40]),
    "segment_index_bytes": st.sampled_from([24, 60, 1000, 10 << 20]),
    "index_interval_bytes": st.sampled_from([0, 100, 250, 4096]),
    "retention_ms": st.sampled_from([-1, 0, 5, 1000, 60_000, 600_000]),
    "retention_bytes": st.sampled_from([-1, -1, 0, 500, 2000]),
    "file_delete_delay_ms": st.sampled_from([1, 1001, 59_999]),
    "log_retention_check_interval_ms": st.sampled_from([100, 3000, 60_000]),
    "log_initial_task_delay_ms": st.sampled_from([0, 70, 30_000]),
}


def lived(batches: list[Batch], end_ms: int, chosen: dict[str, Any]) -> Lived:
    with tempfile.TemporaryDirectory() as root:
        return live(Path(root), batches, end_ms, chosen)


@given(batches_at_times(), st.fixed_dictionaries(SETTINGS))
@settings(examples(0.2), suppress_health_check=SPARED, phases=PHASES)
def test_segments_of_any_batches_roll_and_go_as_foretold(batches: list[Batch], chosen: dict[str, Any]) -> None:
    end_ms = min(batches[-1].ms + 700_000, START_MS + MOST_CHECKS * checks_of(chosen)[0])
    batches = [batch for batch in batches if batch.ms <= end_ms]
    plan = simulated(stretches_of(batches), end_ms, chosen)
    log = lived(batches, end_ms, chosen)
    assert foretold(plan) == log.lives
    assert plan.rolls == log.roll_reasons


LOADS = st.builds(
    lambda rate, records, skew, idle, value_bytes, keys: (
        Load(rate, encoded(records, value_bytes, keys) / records, records, skew, idle, keys),
        value_bytes,
    ),
    st.sampled_from([0.1, 1, 3, 7, 20]),
    st.sampled_from([1, 1, 4]),
    st.sampled_from([0, 0, 1000, 60_000]),
    st.sampled_from([(), (), ((0, 60_000),), ((20_000, 100_000), (3_600_000, 3_700_000))]),
    st.sampled_from([0, 50, 100]),
    st.none(),
)
KEYED = st.builds(
    lambda made, keys: (
        Load(made[0].rate, encoded(1, made[1], keys), 1, made[0].skew_ms, made[0].idle, keys),
        made[1],
    ),
    LOADS,
    st.sampled_from([1, 3, 10, 40, 1000]),
)


def key(number: int, keys: int | None) -> bytes | None:
    return None if keys is None else b"%06d" % (number % keys)


def encoded(records: int, value_bytes: int, keys: int | None) -> int:
    return len(Batch(START_MS, START_MS, records, value_bytes, key(0, keys)).encoded())


def until(load: Load, end_ms: int) -> Iterator[Stretch]:
    """The stretches of a load that begin up to `end_ms`."""
    for stretch in stretches(load, START_MS):
        yield stretch
        if stretch.first_at(end_ms + 1) < stretch.end:
            break


def batches_of(load: Load, value_bytes: int, end_ms: int) -> list[Batch]:
    """The batches of a load, one by one."""
    return [
        Batch(stretch.time(number), stretch.stamp(number), load.batch_records, value_bytes, key(number, load.keys))
        for stretch in until(load, end_ms)
        for number in range(stretch.first, min(stretch.end, stretch.first_at(end_ms + 1)))
    ]


def end_of(load: Load, chosen: dict[str, Any], more_ms: int) -> int:
    """An end that takes neither too many checks nor too many batches."""
    batches_ms = int(MOST_BATCHES * load.batch_records / load.rate * 1000)
    return START_MS + min(MOST_CHECKS * checks_of(chosen)[0], batches_ms) + more_ms


@given(LOADS, st.fixed_dictionaries(SETTINGS), st.integers(0, 100_000))
@settings(examples(0.2), suppress_health_check=SPARED, phases=PHASES)
def test_a_load_does_to_segments_and_disk_what_is_foretold(
    made: tuple[Load, int], chosen: dict[str, Any], more_ms: int
) -> None:
    load, value_bytes = made
    end_ms = end_of(load, chosen, more_ms)
    plan = simulated(list(until(load, end_ms)), end_ms, chosen)
    batches = batches_of(load, value_bytes, end_ms)
    log = lived(batches, end_ms, chosen)
    assert foretold(plan) == log.lives
    assert plan.rolls == log.roll_reasons
    moments = {part.ms for part in plan.deleted} | {end_ms}
    moments |= {ms + chosen["file_delete_delay_ms"] for ms in moments}
    moments -= {stretch.time(stretch.first) for stretch in until(load, end_ms)}  # there it is that before the append
    disk = disk_at(plan, sorted(moments & log.disk.keys()))
    assert disk == {ms: log.disk[ms] for ms in disk}
    assert end_ms in disk or not batches or batches[0].ms == end_ms


@given(
    KEYED,
    st.fixed_dictionaries(
        {
            **SETTINGS,
            "segment_bytes": st.sampled_from([600, 2000, 5000]),
            "segment_index_bytes": st.sampled_from([1000, 10 << 20]),
            # The age of a segment that compaction has emptied is that of its file, by the clock of the system.
            "retention_ms": st.just(-1),
            "cleanup_policy": st.sampled_from(["compact", "compact", "compact,delete"]),
            "log_cleaner_backoff_ms": st.sampled_from([1000, 15_000]),
            "min_cleanable_dirty_ratio": st.sampled_from([0.0, 0.3, 0.5, 0.9]),
            "min_compaction_lag_ms": st.sampled_from([0, 0, 5000, 60_000]),
            "max_compaction_lag_ms": st.sampled_from([1 << 40, 1 << 62, 70_000, 200_000]),
        }
    ),
    st.integers(0, 10_000),
)
@settings(examples(0.2), suppress_health_check=SPARED, phases=PHASES)
def test_compaction_leaves_at_each_pass_the_segments_that_are_foretold(
    made: tuple[Load, int], chosen: dict[str, Any], more_ms: int
) -> None:
    load, value_bytes = made
    end_ms = end_of(load, chosen, more_ms)
    plan = simulated(list(until(load, end_ms)), end_ms, chosen, keys=load.keys)
    log = lived(batches_of(load, value_bytes, end_ms), end_ms, chosen)
    left = [(each.base_offset, each.size_bytes) for each in plan.log.sealed.each()]
    left.append((plan.log.growing.base_offset, plan.log.growing.size_bytes))
    assert left == log.states[-1][1]
    replaced = {part.ms for part in plan.deleted}
    for (_, before), (ms, after) in zip(log.states, log.states[1:], strict=False):
        names = {base for base, _ in after}
        if any(base not in names or dict(after)[base] < size for base, size in before):
            assert ms in replaced


@given(LOADS, st.fixed_dictionaries(SETTINGS))
@settings(examples(0.15), suppress_health_check=SPARED, phases=PHASES)
def test_the_facts_of_a_plan_are_those_of_the_log(made: tuple[Load, int], chosen: dict[str, Any]) -> None:
    """Through the public function, with the reasons of rolls, files and the segments that it lists."""
    load, value_bytes = made
    end_ms = end_of(load, chosen, 0)
    plan = kstore.plan(
        rate=load.rate,
        record_bytes=load.record_bytes,
        batch_records=load.batch_records,
        skew=load.skew_ms,
        idle=load.idle,
        duration=end_ms - START_MS,
        start=START_MS,
        **chosen,
    )
    log = lived(batches_of(load, value_bytes, end_ms), end_ms, chosen)
    assert plan.segment_count == sum(log.roll_reasons.values()) + 1
    assert plan.roll_reasons == log.roll_reasons
    for segment in plan.segments:
        life = log.segments[segment.base_offset]
        assert (segment.size_bytes, segment.offset_index_entries) == (life.size_bytes, life.offset_entries)
        if segment.deleted_ms is not None:
            assert segment.deleted_ms + START_MS == life.deleted_ms
        elif plan.simulated_ms is None:
            assert life.deleted_ms == -1
    assert log.files <= plan.files <= log.files + 5  # between two looks, and the snapshot that the first segment lacks
