"""A whole Kafka broker in a Java process, and its clients, for tests marked `kafka`.

`Machine` is a Java process that runs one broker at a time; starting the first takes seconds, the next ones half of
one. `Cluster` is a directory that a broker was formatted for, on the loopback address: start it, stop it, kill it with
its process, and talk to it with Kafka's own clients, in plain bytes and tuples. Not thread-safe.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kafka.kafka_jvm import JavaSide, Row, base64_of, command, why_missing
from tests.support.ports import free_ports

CLASS_PATH = "broker-classpath.txt"
CLUSTER_ID = "AQIDBAUGBwgJCgsMDQ4PEA"

# A broker that is small and quick, and has no topics of its own but what a test asks for.
SMALL = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "120000",  # a machine that stops for a while must not raise a leader's epoch
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.ms": "-1",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
}

# Where the last broker was killed, it is held to be alive for so long, and none starts before.
AFTER_A_KILL = {"broker.session.timeout.ms": "3000"}


class Consumed(NamedTuple):
    """A record as a Java consumer got it; the first five are those of `kstore.Record`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int | None


class Found(NamedTuple):
    """Kafka's answer to a ListOffsets request: -1 for none."""

    offset: int
    timestamp: int
    leader_epoch: int | None


class Script(NamedTuple):
    """What one of Kafka's shell scripts left."""

    code: int
    out: str
    err: str


class Machine:
    """The Java process that brokers run in, started when it is first needed and again after a kill."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: Cluster | None = None
        self._java: JavaSide | None = None

    @property
    def java(self) -> JavaSide:
        """The process; its working directory is the machine's."""
        if self._java is None:
            logs = {"": "warn", "org.apache.kafka.clients": "error", "state.change.logger": "info"}
            logs |= {"org.apache.kafka.storage": "info", "kafka.log": "info"}
            flags = ["-Dorg.slf4j.simpleLogger.cacheOutputStream=true"]
            for name, level in logs.items():
                flags.append(f"-Dorg.slf4j.simpleLogger.{f'log.{name}' if name else 'defaultLogLevel'}={level}")
            java, *rest = command("kstore.oracle.Broker", heap="384m", classpath=CLASS_PATH)
            self._java = JavaSide([java, *flags, *rest], self.directory)
        return self._java

    def script(self, name: str, *args: str) -> Script:
        """Run one of Kafka's shell scripts, by its name, in the process."""
        answer = self.java.call("script", name=name, args=args)
        return Script(answer["code"], answer["out"], answer["err"])

    def start(self, properties: Path) -> None:
        """Start a broker; `KafkaError` for what keeps it from starting."""
        self.java.call("start", properties=str(properties))

    def stop(self) -> None:
        """Stop the broker in good order."""
        self.java.call("stop")

    def kill(self) -> None:
        """End the process, and what runs in it, as SIGKILL does."""
        if self._java is not None:
            self._java.kill()
        if self.running is not None:
            self.running.write_properties(AFTER_A_KILL)
        self._java = self.running = None

    def close(self) -> None:
        """End the process, without a thought for what runs in it."""
        if self._java is not None:
            self._java.close()
        self._java = self.running = None

    def make(self, root: Path, **settings: object) -> Cluster:
        """Format a new cluster in `root`; `settings` have underscores for dots."""
        cluster = Cluster(self, root, {name.replace("_", "."): str(value) for name, value in settings.items()})
        cluster.format()
        return cluster


class Cluster:
    """One broker's directories and its address. Requests need it to be running."""

    def __init__(self, machine: Machine, root: Path, settings: Mapping[str, str]) -> None:
        self.machine = machine
        self.root = root
        self.logs = root / "logs"
        self.properties = root / "server.properties"
        self.address, controller = free_addresses(2)
        root.mkdir()
        self._settings = SMALL | {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self.logs),
            **settings,
        }
        self.write_properties({})

    def write_properties(self, others: Mapping[str, str]) -> None:
        """Write the file of settings, with these instead of its own."""
        every = self._settings | others
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in every.items()))

    def format(self) -> None:
        """Make the directories a broker's."""
        args = ("format", "--standalone", "--cluster-id", CLUSTER_ID, "--config", str(self.properties))
        done = self.machine.script("kafka-storage.sh", *args)
        assert done.code == 0, done

    def start(self) -> None:
        """Start the broker; `KafkaError` for what keeps it from starting."""
        self.machine.start(self.properties)
        self.machine.running = self

    def stop(self) -> None:
        """Stop the broker in good order."""
        self.machine.stop()
        self.machine.running = None

    @contextlib.contextmanager
    def up(self) -> Iterator[Cluster]:
        """Run the broker for the length of a `with` block."""
        self.start()
        yield self
        self.stop()

    def said(self) -> str:
        """The broker's log, and that of the brokers before it in the same process."""
        return self.machine.java.said()

    def call(self, op: str, **request: Any) -> Any:
        """Have one of the Java clients do something."""
        return self.machine.java.call(op, bootstrap=self.address, **request)

    def create(self, *names: str, partitions: int = 1, **config: object) -> dict[str, str]:
        """Create topics with these settings, whose names have underscores for dots; their ids."""
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        topics = {name: {"partitions": partitions, "config": settings} for name in names}
        ids: dict[str, str] = self.call("create_topics", topics=topics)
        return ids

    def produce(self, topic: str, rows: Iterable[Row], *, partition: int | None = None, **how: Any) -> list[int]:
        """Send (key, value[, timestamp[, headers]]) rows; their offsets. `how`: name (of a producer that stays),
        config, transaction ("commit" or "abort")."""
        records = []
        for row in rows:
            key, value, timestamp, headers = (list(row) + [None] * 4)[:4]
            pairs = [[name, base64_of(data)] for name, data in headers or ()]
            records.append({"key": base64_of(key), "value": base64_of(value), "timestamp": timestamp, "headers": pairs})
        config = how.pop("config", {})
        name = how.pop("name", f"{self.address} {sorted(config.items())}")
        request = {"topic": topic, "partition": partition, "records": records, "config": config, "name": name, **how}
        return [offset for _, offset in self.call("produce", **request)]

    def consume(self, topic: str, partition: int = 0, offset: int | None = None, **how: Any) -> list[Consumed]:
        """Everything from an offset on, or from the start, to the end; `how`: config of the consumer."""
        lines = self.call("consume", topic=topic, partition=partition, offset=offset, **how)
        return [_consumed(line) for line in lines]

    def committed(self, topic: str, partition: int, count: int) -> list[Consumed]:
        """The committed records, once there are so many: a broker answers a commit before it has written the marker."""
        for _ in range(1000):
            found = self.consume(topic, partition, config={"isolation.level": "read_committed"})
            if len(found) >= count:
                break
        return found

    def first_at(self, topic: str, partition: int, offsets: Iterable[int]) -> list[Consumed | str | None]:
        """The first record from each offset on, None at the end; the name of the consumer's exception if it got one."""
        lines = self.call("first_at", topic=topic, partition=partition, offsets=list(offsets))
        return [_consumed(line) if isinstance(line, dict) else line for line in lines]

    def offsets(self, topic: str, partition: int, at: Iterable[int | str]) -> list[Found]:
        """Ask for the offset of each timestamp, or of "earliest", "latest" or "max_timestamp"."""
        return [Found(**line) for line in self.call("list_offsets", topic=topic, partition=partition, at=list(at))]


def free_addresses(count: int) -> list[str]:
    """So many free addresses on the loopback interface."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def _consumed(line: Mapping[str, Any]) -> Consumed:
    headers = tuple((name, _bytes(data)) for name, data in line["headers"])
    key, value = _bytes(line["key"]), _bytes(line["value"])
    return Consumed(line["offset"], line["timestamp"], key, value, headers, line["leader_epoch"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A Java process for the brokers of a test file; skips, and says what is missing, where there is none."""
    missing = why_missing(CLASS_PATH)
    if missing is not None:
        pytest.skip(missing)
    found = Machine(tmp_path_factory.mktemp("machine"))
    yield found
    found.close()


@pytest.fixture
def cluster(machine: Machine, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of one broker, formatted and not running; stopped by force if a test leaves it running."""
    made = machine.make(tmp_path / "kafka")
    yield made
    if machine.running is made:
        machine.kill()
