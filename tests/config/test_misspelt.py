"""A misspelt keyword is answered with the nearest one that this very call takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.base import arguments


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("t")
        yield store


def open_log(_: kstore.Store, **given: Any) -> None:
    kstore.Log.open("nowhere/t-0", **given)


def open_store(_: kstore.Store, **given: Any) -> None:
    kstore.Store.open("nowhere", **given)


CALLS: dict[Callable[..., Any], tuple[Callable[..., Any], type[Exception], set[str]]] = {
    open_log: (kstore.Log.open, kstore.ConfigError, {"segment_bytes", "clock"}),
    open_store: (kstore.Store.open, kstore.ConfigError, {"segment_bytes", "background"}),
    lambda store, **given: store.create_topic("new", **given): (
        kstore.Store.create_topic, kstore.ConfigError, {"segment_bytes", "partitions"},
    ),
    lambda store, **given: store.update_config(**given): (
        kstore.Store.update_config, kstore.ConfigError, {"segment_bytes", "config"},
    ),
    lambda store, **given: store.log("t", 0).update_config(**given): (
        kstore.Log.update_config, kstore.ConfigError, {"segment_bytes"},
    ),
    lambda _, **given: kstore.LogConfig(**given): (kstore.LogConfig, kstore.ConfigError, {"segment_bytes"}),
    lambda _, **given: kstore.BrokerConfig(**given): (kstore.BrokerConfig, kstore.ConfigError, {"log_dirs"}),
    lambda store, **given: store.consumer("g", "t", **given): (
        kstore.Store.consumer, TypeError, {"timeout", "positions"},
    ),
    lambda store, **given: store.producer(**given): (kstore.Store.producer, TypeError, {"transactional_id"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "misspelt", "meant"),
    [
        (0, "segment_byte", "segment_bytes"),
        (0, "clok", "clock"),
        (0, "max_decompresed_bytes", "max_decompressed_bytes"),
        (1, "backgruond", "background"),
        (1, "sead", "seed"),
        (1, "log_retention_check_interval", "log_retention_check_interval_ms"),
        (1, "max_open_file", "max_open_files"),
        (2, "partition", "partitions"),
        (2, "existok", "exist_ok"),
        (2, "retention", "retention_ms"),
        (3, "confg", "config"),
        (4, "flush_mss", "flush_ms"),
        (5, "segment.bytes", "segment_bytes"),
        (6, "log_dir_", "log_dir"),
        (7, "auto_offset_rest", "auto_offset_reset"),
        (7, "position", "positions"),
        (7, "topic", "topics"),
        (8, "transaction_id", "transactional_id"),
    ],
)
def test_the_hint_names_what_the_call_takes(store: kstore.Store, call: int, misspelt: str, meant: str) -> None:
    act, (_, kind, _) = list(CALLS.items())[call]
    with pytest.raises(kind, match=f"{re.escape(misspelt)}.*did you mean '{meant}'"):
        act(store, **{misspelt: 1})


def test_no_hint_names_a_keyword_that_the_call_does_not_take(store: kstore.Store) -> None:
    """Every name that any of the calls takes, and a slip of it, is given to each of them."""
    taken = {name for each in CALLS.values() for name in allowed(each[0])}
    for act, (call, kind, some) in CALLS.items():
        own = allowed(call)
        assert some <= own
        for name in sorted({*taken, *(name[:-1] for name in taken)} - own):
            with pytest.raises(kind) as caught:
                act(store, **{name: 1})
            hint = re.search(r"did you mean '(\w+)'", str(caught.value))
            assert hint is None or hint[1] in own, (call, name, str(caught.value))


def allowed(call: Callable[..., Any]) -> set[str]:
    """The names that a call may be given by keyword: its own, and the settings it takes."""
    own: set[str] = set()
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            own.add(parameter.name)
        else:
            tables: list[Any] = [kstore.LogConfig] if call is not kstore.BrokerConfig else [kstore.BrokerConfig]
            if call == kstore.Store.open:
                tables.append(kstore.BrokerConfig)
            own |= {row.attribute for table in tables for row in table.settings}
    return own - {"self"}


def test_the_names_of_a_call_are_those_of_its_signature() -> None:
    for call in (kstore.Log.open, kstore.Store.open, kstore.Store.create_topic, kstore.Store.update_config):
        parameters = inspect.signature(call).parameters.values()
        own = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}
        assert arguments.names_of(call) == own


def test_what_has_no_likeness_has_no_hint(store: kstore.Store) -> None:
    for act, (_, kind, _) in CALLS.items():
        with pytest.raises(kind) as caught:
            act(store, zzzzzzzz=1)
        assert "did you mean" not in str(caught.value)
