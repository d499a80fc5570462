"""Spark's own Kafka source and sink, whose jars `make jvm` fetches, for tests and benchmarks with a broker."""

from __future__ import annotations

from tests.kafka import kafka_jvm
from tests.kafka.kafka_broker import CLASS_PATH

JARS = kafka_jvm.TARGET / "spark-kafka"


def why_missing() -> str | None:
    """What a broker or the connector lacks on this machine, and what brings it; None if both can run."""
    missing = kafka_jvm.why_missing(CLASS_PATH)
    return missing or (None if jars() else f"no jars in {JARS}: run make jvm")


def jars() -> str:
    """The connector as Spark's setting `spark.jars`."""
    return ",".join(str(jar) for jar in sorted(JARS.glob("*.jar")))
