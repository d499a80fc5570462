"""`--decode`: values by a schema on the terminal and in files; `read_columns(decode=)`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kstore
from kstore import cli
from kstore.errors import ConfigError, InvalidRecordError

FRUIT = {
    "type": "record",
    "name": "Fruit",
    "fields": [
        {"name": "kind", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": "bytes"},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
    ],
}


@pytest.fixture
def root(root: Path) -> Path:
    """A topic of JSON with a bad value and a tombstone, one of Avro, and the topic of its registry."""
    with kstore.Store.open(root, background=False) as store:
        for topic in ("orders", "fruits", "_schemas"):
            store.create_topic(topic)
        for value in (b'{"n": 1, "at": "2026-11-02T10:00:00Z"}', b"bad", None, b'{"n": 2, "at": null}'):
            store.append("orders", value, key=b"k", timestamp=1000)
        body = io.BytesIO()
        fastavro.schemaless_writer(
            body, FRUIT, {"kind": "pear", "at": 1000, "raw": b"\xff", "sizes": {"a": float("nan")}}
        )
        store.append("fruits", b"\0\0\0\0\7" + body.getvalue(), timestamp=1000)
        schema = {"subject": "fruits-value", "version": 1, "id": 7, "schema": json.dumps(FRUIT)}
        key = {"keytype": "SCHEMA", "subject": "fruits-value", "version": 1}
        store.append("_schemas", json.dumps(schema).encode(), key=json.dumps(key).encode())
    return root


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(each) for each in arguments])
        return (code, *capfd.readouterr())

    return run


def test_cat_prints_decoded_values_as_json(root: Path, run: Callable[..., Any]) -> None:
    code, out, _ = run("cat", root / "orders", "--decode", "json", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["value"] for line in lines] == [
        {"n": 1, "at": "2026-11-02T10:00:00Z"}, None, None, {"n": 2, "at": None}
    ]  # fmt: skip
    assert [line.get("value_error") for line in lines] == [
        None,
        "no JSON: Expecting value: line 1 column 1 (char 0)",
        None,
        None,
    ]
    assert lines[0]["offset"] == 0
    assert lines[0]["key"] == "k"


def test_cat_prints_what_comes_before_a_bad_value_and_names_it(root: Path, run: Callable[..., Any]) -> None:
    code, out, error = run("cat", root / "orders", "--decode", "json", "--format", r"%o %k %s\n")
    assert code == 1
    assert out == '0 k {"n": 1, "at": "2026-11-02T10:00:00Z"}\n'
    assert error == "kstore cat: orders-0, offset 1: no JSON: Expecting value: line 1 column 1 (char 0)\n"


def test_cat_decodes_avro_by_the_topic_of_the_registry(root: Path, run: Callable[..., Any]) -> None:
    _, out, _ = run("cat", root / "fruits-0", "--decode", f"avro:{root}")
    wanted = {"kind": "pear", "at": "1970-01-01T00:00:01.000Z", "raw": "/w==", "sizes": {"a": None}}
    assert json.loads(out) == wanted


def test_a_file_of_types_is_a_schema(root: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    types = tmp_path / "types.json"
    types.write_text('{"n": "double", "s": {"x": ["int8"]}, "at": "timestamp[ms, tz=UTC]"}')
    _, out, _ = run("cat", root / "orders", "--decode", f"json:{types}", "--json", "--max", 1)
    assert json.loads(out)["value"] == {"n": 1.0, "s": None, "at": "2026-11-02T10:00:00.000Z"}
    for text, words in (
        ("[]", "an object of names and Arrow types is wanted"),
        ('{"n": "long"}', "n is 'long'; the name of an Arrow type, an object or a list of one is wanted"),
        ("{", "Expecting property name"),
    ):
        types.write_text(text)
        code, _, error = run("cat", root / "orders", "--decode", f"json:{types}")
        assert code == 1
        assert words in error


@pytest.mark.parametrize("how", ["xml", "avro", "avro:", "protobuf:file", "protobuf::M", "jsonx:f"])
def test_an_unknown_decoder_is_refused(root: Path, run: Callable[..., Any], how: str) -> None:
    code, _, error = run("cat", root / "orders", "--decode", how)
    assert code == 1
    assert error.endswith(
        f"--decode is '{how}'; json, json:FILE, avro:URL, avro:DIR and protobuf:FILE:MESSAGE are known\n"
    )


def test_json_without_a_schema_stays_as_it_is(root: Path, run: Callable[..., Any]) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("mixed")
        values = [
            b'{"a":1}',
            b'{"a":"x","t":"2026-01-01T00:00:00+02:00"}',
            b'{"a":123456789012345678901,"o":{}}',
            b"[1]",
        ]
        store.append_many("mixed", [(None, value) for value in [*values, b'{"a":NaN}', b"\xff", b"[" * 100_000]])
    code, out, _ = run("cat", root / "mixed", "--decode", "json", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["value"] for line in lines[:3]] == [json.loads(value) for value in values[:3]]
    assert [line["value"] for line in lines[3:]] == [None, {"a": None}, None, None]
    assert [bool(line.get("value_error")) for line in lines] == [False, False, False, True, False, True, True]


# ---- read_columns


def test_read_columns_decodes_values_to_a_record_batch(root: Path) -> None:
    fields = kstore.JsonValues({"n": pa.int64()}, columns=True)
    with kstore.Store.open(root, "r") as store, kstore.Log.open(root / "orders-0", "r") as log:
        batch = log.read_columns(decode=fields)
        assert batch.schema.names == ["offset", "timestamp", "key", "value", "n", "value_error"]
        assert batch.column("n").to_pylist() == [1, None, None, 2]
        assert batch.column("value_error").to_pylist() == [None, "no JSON object", None, None]
        chunks = list(store.read_columns("orders", max_records=3, columns=["value"], decode=kstore.JsonValues()))
        assert [(number, chunk.num_rows) for number, chunk in chunks] == [(0, 3), (0, 1)]
        assert chunks[0][1].schema == chunks[1][1].schema, "the first chunk shows the schema"
        assert log.read_columns(4, decode=fields).num_rows == 0


def test_with_raise_read_columns_names_the_offset_or_the_row(root: Path) -> None:
    strict = kstore.JsonValues({"n": pa.int64()}, errors="raise")
    with kstore.Log.open(root / "orders-0", "r") as log:
        with pytest.raises(InvalidRecordError, match=r"^orders-0, offset 1: no JSON object$"):
            log.read_columns(decode=strict)
        with pytest.raises(InvalidRecordError, match=r"^orders-0, row 0: no JSON object$"):
            log.read_columns(1, columns=["value"], decode=strict)


def test_what_cannot_be_decoded_is_refused_before_it_is_read(root: Path) -> None:
    fields = kstore.JsonValues({"n": pa.int64()})
    with kstore.Log.open(root / "orders-0", "r") as log:
        with pytest.raises(ConfigError, match=r"columns is \['key'\]; decode= needs 'value'"):
            log.read_columns(columns=["key"], decode=fields)
        with pytest.raises(ConfigError, match="layout is 'view'; decode= needs 'binary'"):
            log.read_columns(layout="view", decode=fields)


# ---- export


def test_export_writes_structs_into_parquet_and_json_lines(root: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    assert run("export", root / "fruits", "--to", tmp_path / "f.parquet", "--decode", f"avro:{root}", "--text")[0] == 0
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "value_error", "headers"]
    value = table["value"].to_pylist()[0]
    assert (value["kind"], value["at"], value["raw"]) == ("pear", datetime.fromtimestamp(1, UTC), b"\xff")
    assert run("export", root / "orders", "--to", tmp_path / "o.jsonl", "--decode", "json")[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [line["value"] for line in lines] == [
        {"n": 1, "at": "2026-11-02T10:00:00Z"},
        None,
        None,
        {"n": 2, "at": None},
    ]
    assert [line["value_error"] for line in lines] == [None, "no JSON object", None, None]


def test_export_writes_fields_as_columns_of_csv_and_those_that_are_named(
    root: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    assert run("export", root / "orders", "--to", tmp_path / "o.csv", "--decode", "json")[0] == 0
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0] == '"topic","partition","offset","timestamp","key","n","at","value_error"'
    assert lines[1].endswith('"k",1,"2026-11-02T10:00:00Z",')
    assert lines[2].endswith('"k",,,"no JSON object"')
    to = tmp_path / "o.parquet"
    assert (
        run("export", root / "orders", "--to", to, "--decode", "json", "--columns", "offset,n", "--offset", 1)[0] == 0
    )
    assert pq.read_table(to).to_pylist() == [{"offset": 1, "n": None}, {"offset": 2, "n": None}, {"offset": 3, "n": 2}]
    code, _, error = run("export", root / "orders", "--to", tmp_path / "x.csv", "--decode", "json", "--columns", "m")
    assert code == 1
    assert "--columns has 'm'; " in error
    assert "n, at, value_error are known" in error
    assert not (tmp_path / "x.csv").exists()


def test_an_export_of_json_has_the_fields_of_all_values_and_counts_misfits(
    root: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    with kstore.Store.open(root, background=False) as store:
        store.create_topic("many")
        store.append_columns("many", [b'{"n":1}'] * 3000 + [b'{"n":2,"late":true,"none":{}}', b"bad"])
        store.create_topic("mixed")
        store.append_many("mixed", [(None, b'{"n":1}'), (None, b'{"n":"x"}')])
    to = tmp_path / "many.parquet"
    code, out, error = run("export", root / "many", "--to", to, "--decode", "json", "--json")
    assert (code, json.loads(out)["value_errors"]) == (0, 1)
    assert error == "kstore export: 1 values do not fit; the column value_error says why\n"
    assert pq.read_table(to)["value"].to_pylist()[2999:] == [{"n": 1, "late": None}, {"n": 2, "late": True}, None]
    code, _, error = run("export", root / "mixed", "--to", tmp_path / "m.parquet", "--decode", "json")
    assert code == 1
    assert "n has incompatible types: int64 vs string" in error
    assert not (tmp_path / "m.parquet").exists()


@pytest.mark.parametrize("how", ["json", "avro"])
def test_a_group_decodes_what_is_new_and_may_find_nothing(
    root: Path, tmp_path: Path, run: Callable[..., Any], how: str
) -> None:
    topic, decode = ("orders", "json") if how == "json" else ("fruits", f"avro:{root}")
    counts = []
    for number in range(2):
        to = tmp_path / f"{number}.parquet"
        assert run("export", root / topic, "--to", to, "--decode", decode, "--group", "nightly")[0] == 0
        counts.append(pq.read_table(to).num_rows)
    assert counts == [4 if how == "json" else 1, 0]
