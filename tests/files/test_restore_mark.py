"""The mark of a restore that is not finished: its text, and what is refused while it is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore.errors import StorageError
from kstore.files import restore_mark
from kstore.files.restore_mark import Progress

PROGRESS = Progress("backup-1", 7, "all", complete=False)


def test_progress_is_read_as_it_was_written(root: Path) -> None:
    assert restore_mark.read_progress(str(root)) is None
    for progress in (PROGRESS, PROGRESS._replace(complete=True)):
        restore_mark.write_progress(str(root), progress)
        assert restore_mark.read_progress(str(root)) == progress
    restore_mark.remove_progress(str(root))
    assert restore_mark.read_progress(str(root)) is None
    restore_mark.remove_progress(str(root))


@given(data=st.binary(max_size=200) | st.text(max_size=80).map(lambda text: f'{{"version": 1, "{text}": 0}}'.encode()))
def test_any_bytes_in_its_place_are_a_storage_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / restore_mark.RESTORE_FILE).write_bytes(data)
    with pytest.raises(StorageError):
        restore_mark.read_progress(str(root))


@pytest.mark.parametrize("mode", ["a", "r"])
def test_until_a_restore_is_finished_stores_and_logs_are_refused_with_a_remedy(root: Path, mode: str) -> None:
    with kstore.Log.open(root / "t-0") as log:
        log.append(b"v")
    restore_mark.write_progress(str(root), PROGRESS)
    before = sorted(path.name for path in root.iterdir())
    with pytest.raises(StorageError, match=r"not finished; the same `kstore restore` again"):
        kstore.Store.open(root, mode)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="not finished"):
        kstore.Log.open(root / "t-0", mode)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="not finished"):
        kstore.Store.open([root.parent / "other", root], mode)  # type: ignore[arg-type]
    assert sorted(path.name for path in root.iterdir()) == before
    with restore_mark.finishing(str(root)), kstore.Store.open(root, "r") as store:
        assert [record.value for record in store.read("t")] == [b"v"]
    restore_mark.remove_progress(str(root))
    with kstore.Log.open(root / "t-0", mode) as log:  # type: ignore[arg-type]
        assert log.log_end_offset == 1


def test_a_damaged_mark_refuses_as_well(root: Path) -> None:
    (root / restore_mark.RESTORE_FILE).write_bytes(b"")
    with pytest.raises(StorageError, match="not finished"):
        kstore.Store.open(root)
