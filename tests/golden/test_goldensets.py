"""The golden sets are whole: each unpacks, and names partition directories that are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import goldensets


def test_all_seventeen_sets_are_packed() -> None:
    assert len(goldensets.SETS) == 17


@pytest.mark.parametrize("name", goldensets.SETS)
def test_a_set_unpacks_with_the_directories_its_records_name(name: str, golden: Callable[[str], Path]) -> None:
    folder = golden(name)
    assert goldensets.about(name)["kafkaVersion"].startswith(("4.3.0", "2.8.2"))
    if name == "damaged-files":
        return
    directories = goldensets.partition_directories(name)
    assert directories
    for directory in directories:
        assert (folder / directory).is_dir()
        for record in goldensets.expected_records(name, directory):
            assert (folder / directory / record.segment).is_file()


def test_two_copies_of_a_set_are_two_copies(tmp_path: Path) -> None:
    first = goldensets.copy_set("canary-vectors", tmp_path / "a")
    second = goldensets.copy_set("canary-vectors", tmp_path / "b")
    log = Path("dir/vector-a-0/00000000000000000000.log")
    (first / log).write_bytes(b"")
    assert (second / log).stat().st_size > 0
