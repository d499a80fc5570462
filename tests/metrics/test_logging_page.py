"""docs/logging.md has each message that the source logs, with its level, and no other."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from tests.test_docs import REPOSITORY, text_of

PAGE = REPOSITORY / "docs" / "logging.md"
PACKAGE = REPOSITORY / "kstore"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
Message = tuple[str, str]


def messages_in_python(text: str) -> Iterator[Message]:
    """(level, format) of each call of a logger; a format that is put together is found as the source writes it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            if not re.search(r"\b\w*logger$", ast.unparse(node.func.value)):
                continue
            first = node.args[0]
            shown = first.value if isinstance(first, ast.Constant) else ast.unparse(first)
            yield _level(node.func.attr), str(shown)


def messages_in_cython(text: str) -> Iterator[Message]:
    for level, shown in re.findall(r"logger\.(\w+)\(\s*(\"[^\"]*\"|[^,)]+)", text):
        if level in LEVELS:
            yield _level(level), shown.strip('"')


def _level(method: str) -> str:
    return "ERROR" if method == "exception" else method.upper()


def messages_of_source() -> set[Message]:
    found = {message for path in PACKAGE.rglob("*.py") for message in messages_in_python(text_of(path))}
    return found | {message for path in PACKAGE.rglob("*.pyx") for message in messages_in_cython(text_of(path))}


def messages_of_page() -> list[Message]:
    return re.findall(r"^\| ([A-Z]+) \| `([^|]+)` \|", text_of(PAGE), re.MULTILINE)


def test_each_message_of_the_source_is_on_the_page_once() -> None:
    listed = messages_of_page()
    assert len(listed) == len(set(listed))
    assert set(listed) == messages_of_source()


def test_each_row_says_what_to_do() -> None:
    rows = [line for line in text_of(PAGE).splitlines() if re.match(r"\| [A-Z]+ \| `", line)]
    assert [row for row in rows if not row.strip().strip("|").split("|")[-1].strip()] == []


def test_calls_are_found_in_both_languages() -> None:
    python = 'logger.info("a %s", 1)\nself._logger.exception("b")\nother.info("no")\nfuture_logger.warning("c" + d)'
    assert list(messages_in_python(python)) == [("INFO", "a %s"), ("ERROR", "b"), ("WARNING", "'c' + d")]
    assert list(messages_in_cython('logger.warning("a %d",\n  1)\nlogger.info(text)')) == [
        ("WARNING", "a %d"),
        ("INFO", "text"),
    ]


def test_names_of_other_loggers_do_not_occur() -> None:
    names = {
        name
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyx")]
        for name in re.findall(r"getLogger\(\"([^\"]*)\"\)", text_of(path))
    }
    assert names == {"kstore", "kstore.future"}


def test_appends_and_reads_log_nothing_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kstore")
    with kstore.Store.open(tmp_path, background=False) as store:
        store.create_topic("t", 1)
        caplog.clear()
        for _ in range(3):
            store.append("t", b"v", sync=True)
        store.append_many("t", [b"v"] * 10)
        store.append_columns("t", [b"v"] * 10)
        with store.producer(transactional_id="id") as producer, producer.transaction() as txn:
            txn.append("t", b"v")
        list(store.read("t"))
        store.read_columns("t")
        store.log("t", 0).fetch(0, 1000)
        assert caplog.messages == []
        store.log("t", 0).update_config(segment_bytes=200)
        store.append("t", b"v")
    assert {record.levelname for record in caplog.records if "new segment" in record.message} == {"INFO"}


def test_a_message_that_holds_a_terminals_commands_is_one_escaped_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x\x1b[31m\ny").mkdir()
    with kstore.Store.open(tmp_path, background=False):
        pass
    [message] = [message for message in caplog.messages if "passed over" in message]
    assert "\\x1b[31m\\x0ay" in message
