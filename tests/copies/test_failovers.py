"""Failovers at any moment: whoever led, crashed or was left behind, in the end all replicas are byte for byte alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.support.failovers import live, live_many
from tests.support.replicas import Watch


def test_replicas_are_alike_after_failovers(
    tmp_path: Path,
    budget: Callable[[float], float],
    monkeypatch: pytest.MonkeyPatch,
    no_syncs: None,
    record_property: Callable[[str, object], None],
) -> None:
    watch = Watch(monkeypatch)
    counts = live_many(lambda n: live(f"{SEED}:{n}", tmp_path / str(n), watch, unique_epochs=False), budget(8))
    record_property("histories of failovers", counts["histories"])
    for kind in ("elections", "truncations", "tails lost"):
        record_property(f"{kind} among failovers", counts[kind])
