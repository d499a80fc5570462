"""What a plan foretells happens: the same batches at the same times, appended to a real log with a moved clock."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.planning.lived_logs import START_MS, Batch, foretold, live, simulated

pytestmark = pytest.mark.usefixtures("no_syncs")


@st.composite
def batches_at_times(draw: st.DrawFn) -> list[Batch]:
    """Batches of a few shapes, mostly close to each other, with timestamps near the clock."""
    ms, found = START_MS, []
    gaps = draw(st.sampled_from([(0, 1, 2), (10, 50), (1000, 5000), (1, 1000, 60_000)]))
    skew = draw(st.sampled_from([0, 0, 10, 3000, 100_000]))
    for _ in range(draw(st.integers(1, 80))):
        ms += draw(st.sampled_from(gaps))
        stamp = ms - draw(st.integers(-skew // 10, skew)) if skew else ms
        found.append(Batch(ms, stamp, draw(st.sampled_from([1, 1, 3])), draw(st.sampled_from([0, 30, 100]))))
    return found


SETTINGS = st.fixed_dictionaries(
    {
        "segment_bytes": st.sampled_from([600, 1000, 4000, 1 << 20]),
        "segment_ms": st.sampled_from([1, 100, 10_000, 300_000, 1 << 40]),
        "segment_index_bytes": st.sampled_from([12, 24, 60, 1000, 10 << 20]),
        "index_interval_bytes": st.sampled_from([0, 100, 250, 4096]),
        "retention_ms": st.sampled_from([-1, 0, 5, 1000, 60_000, 600_000]),
        "retention_bytes": st.sampled_from([-1, -1, 0, 500, 2000]),
        "file_delete_delay_ms": st.sampled_from([1, 1000, 60_000]),
        "log_retention_check_interval_ms": st.sampled_from([100, 3000, 60_000]),
        "log_initial_task_delay_ms": st.sampled_from([0, 70, 30_000]),
    }
)


@pytest.mark.filterwarnings("ignore::kstore.errors.ConfigWarning")
@given(batches_at_times(), SETTINGS)
@settings(examples(0.3), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_segments_roll_and_go_as_foretold(batches: list[Batch], chosen: dict[str, Any]) -> None:
    interval = chosen["log_retention_check_interval_ms"]
    end_ms = min(batches[-1].ms + 700_000, START_MS + 60 * interval)
    batches = [batch for batch in batches if batch.ms <= end_ms]
    plan = simulated(batches, end_ms, chosen)
    with tempfile.TemporaryDirectory() as root:
        lived = live(Path(root), batches, end_ms, chosen)
    assert foretold(plan) == lived.lives
    assert plan.rolls == lived.roll_reasons
