"""`Log.append` with headers writes what `append_many` writes of the same record, in whatever form they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kstore
from kstore import Log
from kstore.codec.refusals import NO_KEY
from kstore.errors import InvalidRecordError, RecordTooLargeError, TimestampWarning
from tests.conftest import ManualClock

NAMES = st.text(max_size=200) | st.sampled_from(["", "a", "é" * 40, "x" * 63, "x" * 64, "x" * 70_000, "\udcff"])
VALUES = st.none() | st.binary(max_size=200) | st.sampled_from([b"", b"v" * 63, b"v" * 64, b"v" * 9_000])
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5) | st.just([("n", b"v")] * 64)
FORMS: dict[str, Callable[[list[tuple[str, bytes | None]]], Any]] = {
    "a list": list,
    "a tuple": tuple,
    "lists in a list": lambda pairs: [list(pair) for pair in pairs],
    "other buffers": lambda pairs: [(name, None if value is None else bytearray(value)) for name, value in pairs],
    "an iterator": iter,
    "a dict": dict,
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Log, Log]]:
    """Two logs that are appended to in turn."""
    root, clock = tmp_path_factory.mktemp("headers"), ManualClock()
    with Log.open(root / "one-0", clock=clock) as one, Log.open(root / "many-0", clock=clock) as many:
        one.append(b"")
        many.append(b"")
        yield one, many


def newest(log: Log) -> bytes:
    """The last batch."""
    return bytes(log.fetch(log.log_end_offset - 1, 1).records)


def ended(call: Callable[[], object]) -> str:
    """How a call ended: the type and the words of what it raised."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "well"


@given(PAIRS, st.sampled_from(sorted(FORMS)), st.none() | st.binary(max_size=100), st.integers(-1, 1_700_000_000_000))
def test_the_bytes_are_those_of_append_many(
    logs: tuple[Log, Log], pairs: list[tuple[str, bytes | None]], form: str, key: bytes | None, timestamp: int
) -> None:
    one, many = logs
    one.append(b"value", key, timestamp=timestamp, headers=FORMS[form](pairs))
    many.append_many([(key, b"value", timestamp, FORMS[form](pairs))])
    assert newest(one) == newest(many)
    [record] = one.read(one.log_end_offset - 1)
    assert record.headers == tuple(dict(pairs).items() if form == "a dict" else pairs)


@pytest.mark.parametrize(
    "headers",
    [7, [7], ["ab"], [("a",)], [("a", b"b", b"c")], [(b"a", b"b")], [("a", "b")], [("\ud800", b"")], [(None, b"")]],
    ids=repr,
)
def test_what_is_refused_is_refused_in_the_same_words_and_nothing_is_appended(
    logs: tuple[Log, Log], headers: Any
) -> None:
    one, many = logs
    end = one.log_end_offset
    how = ended(lambda: one.append(b"value", headers=headers))
    assert how.startswith((TypeError.__name__, InvalidRecordError.__name__))
    assert how == ended(lambda: many.append_many([(None, b"value", None, headers)]))
    assert one.log_end_offset == end


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_refusal_and_a_warning_are_the_same_for_all_forms(tmp_path: Path, clock: ManualClock, form: str) -> None:
    with Log.open(tmp_path / "t-0", config={"cleanup.policy": "compact"}, clock=clock) as log:
        log.append(b"first", b"key")
        for headers in (None, FORMS[form]([("name", b"value")])):
            with pytest.raises(InvalidRecordError) as refused:
                log.append(b"no key", headers=headers)
            assert (str(refused.value), refused.value.record_errors) == (NO_KEY, ())
            assert getattr(refused.value, "appended", None) is None
        assert log.log_end_offset == 1
        with pytest.warns(TimestampWarning):
            log.append(b"seconds", b"key", timestamp=1_700_000_000, headers=FORMS[form]([("name", b"value")]))


def test_a_record_may_be_as_large_as_allowed_with_its_headers(tmp_path: Path, clock: ManualClock) -> None:
    batch = kstore.encode_batch([(b"key", b"value" * 100, clock.now, [("name", b"x" * 100)])])
    for spare in (-1, 0, 1):
        settings = {"max.message.bytes": str(len(batch) + spare)}
        with Log.open(tmp_path / f"{spare + 1}-0", config=settings, clock=clock) as log:
            if spare < 0:
                with pytest.raises(RecordTooLargeError, match=f"{len(batch)} bytes"):
                    log.append(b"value" * 100, b"key", headers=[("name", b"x" * 100)])
                assert log.log_end_offset == 0
            else:
                log.append(b"value" * 100, b"key", headers=[("name", b"x" * 100)])
                assert len(newest(log)) == len(batch)
