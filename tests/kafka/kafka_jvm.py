"""Apache Kafka's own log, record classes and dump tool in one Java process, for tests marked `kafka`.

`Kafka` starts the driver of `tests/kafka/jvm` and talks to it in JSON lines. `Kafka.open` gives a `KafkaLog`: Kafka's
`UnifiedLog` with a clock and background tasks that stand still until the test moves them. Refusals arrive as
`KafkaError` with the class name of Kafka's exception. One process serves a whole test run; it holds many logs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import pytest

PROJECT = Path(__file__).parent / "jvm"
TARGET = PROJECT / "target"
START_MS = 1_700_000_000_000

# (timestamp, key, value) or (timestamp, key, value, headers); an offset may be the fifth.
Row = Sequence[Any]


class KafkaError(Exception):
    """Kafka refused: `name` is its exception's class; of a RecordValidationException `invalid` is the wrapped one's."""

    def __init__(self, name: str, message: str | None, details: Mapping[str, Any]) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message
        self.invalid: str | None = details.get("invalid")
        self.records: tuple[tuple[int, str], ...] = tuple(
            (r["index"], r["message"]) for r in details.get("records", ())
        )
        self.details = details

    def __str__(self) -> str:
        return super().__str__() + "".join(f"\n    at {frame}" for frame in self.details.get("where", ()))


class Dumped(NamedTuple):
    """What one run of the dump tool left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def why_missing(classpath: str = "classpath.txt") -> str | None:
    """What these tests lack on this machine, and what brings it; None if they can run."""
    if shutil.which("java") is None:
        return "no `java`: install a JDK (Debian: default-jdk-headless), then run make jvm"
    listing = TARGET / classpath
    if not listing.exists() or not (TARGET / "oracle.jar").exists():
        return f"no {listing.relative_to(PROJECT.parent.parent)}: run make jvm (needs javac, mvn, and the network once)"
    gone = [jar for jar in listing.read_text().strip().split(os.pathsep) if not Path(jar).exists()]
    if gone:
        return f"{len(gone)} of Kafka's jars are gone, {Path(gone[0]).name} among them: run make jvm"
    return None


def command(
    main: str = "kstore.oracle.Main", *, heap: str = "1g", quick: bool = True, classpath: str = "classpath.txt"
) -> list[str]:
    """The command line of the Java side; `quick` favours a short start over top speed."""
    jars = f"{TARGET / 'oracle.jar'}{os.pathsep}{(TARGET / classpath).read_text().strip()}"
    flags = ["-XX:TieredStopAtLevel=1", "-Xshare:auto"] if quick else []
    return ["java", f"-Xmx{heap}", "-XX:+UseSerialGC", *flags, "-Dfile.encoding=UTF-8", "-cp", jars, main]


class JavaSide:
    """A Java process that answers requests, a JSON line for each. Not thread-safe: one request at a time."""

    def __init__(self, command_line: Sequence[str], directory: Path | None = None) -> None:
        self._stderr: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command_line,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; logs still open are left as a crash would leave them."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._let_go()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._process.kill()
        self._let_go()

    def _let_go(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def call(self, op: str, **request: Any) -> Any:
        """Run one operation; what it answered, or KafkaError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"op": op, **request}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"the Java process ended with {code} at {op}: {self.said()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            error = answer["error"]
            raise KafkaError(error["class"], error["message"], error)
        return answer["ok"]

    def said(self) -> str:
        """What the process has written to its standard error."""
        return os.pread(self._stderr.fileno(), 1 << 26, 0).decode("utf-8", "replace")


class Kafka(JavaSide):
    """Kafka's log, record classes and dump tool in a Java process."""

    def __init__(self, command_line: Sequence[str] | None = None) -> None:
        super().__init__(command() if command_line is None else command_line)
        self._opened = 0

    def open(
        self, directory: Path, *, now: int = START_MS, config: Mapping[str, Any] | None = None, **how: Any
    ) -> KafkaLog:
        """Open or create the log of `directory`. `clean`, `recovery_point` and `log_start` default to what the marker
        and the checkpoint files beside it say; `high_watermark` to the log's end."""
        self._opened += 1
        log = KafkaLog(self, f"log-{self._opened}", directory)
        self.call("open", log=log.name, dir=str(directory), now=now, config=_config(config), **how)
        return log

    def encode(self, rows: Sequence[Row], **header: Any) -> bytes:
        """One batch of `rows` by Kafka's own builder. Header fields: base_offset, compression, level, magic,
        timestamp_type, log_append_time, producer_id, producer_epoch, base_sequence, transactional, leader_epoch,
        last_offset, delete_horizon_ms."""
        return base64.b64decode(self.call("encode", **_batch(rows, header)))

    def marker(self, timestamp: int, *, commit: bool, producer_id: int, producer_epoch: int, **header: Any) -> bytes:
        """The control batch that ends a transaction."""
        kind = "commit" if commit else "abort"
        answer = self.call(
            "encode", marker=kind, timestamp=timestamp, producer_id=producer_id, producer_epoch=producer_epoch, **header
        )
        return base64.b64decode(answer)

    def records(self, path: Path) -> list[dict[str, Any]]:
        """Every record of a .log file, or of a directory's, as Kafka's `FileRecords` reads it: the fields of
        `records.jsonl` in golden sets, `valid`, whether the batch's CRC is right, and the `batchMaxTimestamp` of its
        header."""
        answer: list[dict[str, Any]] = self.call("records", path=str(path))
        return answer

    def murmur2(self, keys: Sequence[bytes]) -> list[tuple[int, int]]:
        """The hash of each key by Kafka's `Utils`, and the partition of 50 by its `BuiltInPartitioner`."""
        return [
            (number, partition) for number, partition in self.call("murmur2", keys=[base64_of(key) for key in keys])
        ]

    def dump(self, *args: object) -> Dumped:
        """Run the dump tool with these arguments, on a copy: it opens indexes for writing, makes a missing one
        and cuts an odd length."""
        answer = self.call("dump", args=[str(arg) for arg in args])
        return Dumped(answer["code"], answer["out"], answer["err"])


class KafkaLog:
    """One open `UnifiedLog`. Methods answer what Kafka answers; bytes are bytes, not base64."""

    def __init__(self, kafka: Kafka, name: str, directory: Path) -> None:
        self.kafka = kafka
        self.name = name
        self.directory = directory

    def call(self, op: str, **request: Any) -> Any:
        """Any operation of the driver on this log."""
        return self.kafka.call(op, log=self.name, **request)

    def append_as_leader(self, data: bytes, *, leader_epoch: int = 0, **how: Any) -> dict[str, Any]:
        """`how`: origin ("client", "coordinator"), transaction_version, verify with the producer's fields, raise."""
        answer: dict[str, Any] = self.call("append_leader", data=base64_of(data), leader_epoch=leader_epoch, **how)
        return answer

    def append_as_follower(self, data: bytes, *, leader_epoch: int = 2**31 - 1, **how: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("append_follower", data=base64_of(data), leader_epoch=leader_epoch, **how)
        return answer

    def append(self, *rows: Row, leader_epoch: int = 0, **header: Any) -> dict[str, Any]:
        """Build a batch of `rows` and append it as a leader."""
        batch = _batch(rows, header)
        answer: dict[str, Any] = self.call("append_leader", batch=batch, leader_epoch=leader_epoch)
        return answer

    def read(self, offset: int, max_bytes: int = 2**31 - 1, **how: Any) -> dict[str, Any]:
        """`how`: isolation ("log_end", "read_uncommitted", "read_committed"), min_one_message."""
        answer: dict[str, Any] = self.call("read", offset=offset, max_bytes=max_bytes, **how)
        answer["records"] = base64.b64decode(answer["records"])
        return answer

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset); -1, -2 and -3 mean what they mean in ListOffsets."""
        answer = self.call("offset_for_timestamp", timestamp=timestamp)
        return None if answer is None else (answer["timestamp"], answer["offset"])

    def marks(self) -> dict[str, int]:
        answer: dict[str, int] = self.call("marks")
        return answer

    def epochs(self) -> list[tuple[int, int]]:
        return [(epoch, start) for epoch, start in self.call("epochs")]

    def close(self, *, marker: bool = False) -> None:
        """As a broker that shuts down: flush, trim, write both checkpoints, and with `marker` the clean marker."""
        self.call("close", marker=marker)

    def crash(self) -> None:
        """Let go of the files as they are."""
        self.call("crash")


def _config(given: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (given or {}).items()
    }


def _batch(rows: Sequence[Row], header: Mapping[str, Any]) -> dict[str, Any]:
    records = []
    for row in rows:
        timestamp, key, value, headers, offset = (list(row) + [None] * 5)[:5]
        record = {"timestamp": timestamp, "key": base64_of(key), "value": base64_of(value)}
        if headers:
            record["headers"] = [[name, base64_of(data)] for name, data in headers]
        if offset is not None:
            record["offset"] = offset
        records.append(record)
    return {"records": records, **header}


def base64_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """Kafka in a Java process that the whole run shares; skips, and says what is missing, where there is none."""
    missing = why_missing()
    if missing is not None:
        pytest.skip(missing)
    with Kafka() as process:
        yield process
