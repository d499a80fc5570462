"""`kstore.plan`: what settings do under a load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, SupportsIndex, Unpack

from kstore.base import arguments, times
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.config.settings import refuse_unknown
from kstore.errors import ConfigError
from kstore.explained.explained_plan import Load, Plan
from kstore.planning.given_load import LONGEST_MS, Idle, Span, make_load, span_ms
from kstore.planning.load_stretches import DAY_MS, batch_bytes_of, stretches
from kstore.planning.plan_facts import facts_of
from kstore.planning.simulation import Simulation

if TYPE_CHECKING:
    from kstore.config.keywords import StoreSettings

__all__ = ["MIDNIGHT_MS", "make_plan", "plan"]

MIDNIGHT_MS = 1_767_225_600_000
"""When a plan starts that is not told when: a midnight of UTC."""


def plan(
    config: ConfigSource = None,
    *,
    rate: float,
    record_bytes: float = 1000,
    batch_records: SupportsIndex = 1,
    duration: Span = 30 * DAY_MS,
    skew: Span = 0,
    idle: Idle = (),
    keys: SupportsIndex | None = None,
    start: SupportsIndex | datetime | None = None,
    **settings: Unpack[StoreSettings],
) -> Plan:
    """Return what settings do to one partition under a load: segments, disk, lifetimes, and what to change.

    Runs the rules of rolls, retention and compaction with a clock that moves from event to event; a year takes less
    than a second. Reads and writes no log. The first check is `log.initial.task.delay.ms` after the start, as in a
    store that is opened then.

    Args:
        config: The settings, as `Store.open` takes them: a `LogConfig`, a mapping with Kafka's names, or the path of a
            `server.properties`.
        rate: Records for each second, while the load is not idle.
        record_bytes: Bytes that a record takes in the log, after compression, with its share of the batch's header.
        batch_records: Records of one batch. A `Log.append` makes a batch of one record.
        duration: How long, in milliseconds or as a `timedelta`.
        skew: How far timestamps are behind the clock at most, in milliseconds or as a `timedelta`.
        idle: The parts of each day without appends, in UTC: "22:00-06:00", several of these, or pairs of milliseconds
            of the day.
        keys: How many different keys the records have; they come in turns. Needed if `cleanup.policy` has compact.
        start: When the log is created: an aware `datetime`, or milliseconds since the epoch. By default at midnight.
            Only the time of the day matters, and only with `idle`.
        **settings: Settings as keywords, such as `segment_bytes` or `log_retention_check_interval_ms`; they override
            `config`.

    Returns:
        The plan.

    Raises:
        ConfigError: If a setting is unknown or out of range, if the settings refuse the batches of the load, or if
            `keys` is missing.
        StorageError: If the file of settings cannot be read.
        ValueError: If a part of the load is out of range.

    Example:
        >>> plan = kstore.plan(rate=0.2, record_bytes=150, segment_bytes=16384, retention_ms=600_000)
        >>> plan.first_acting, plan.life_ms.most // 60_000, plan.freed_ms.most // 60_000
        ('segment.bytes', 24, 25)
    """
    arguments.one_of("config", config, LogConfig, Mapping, str, os.PathLike)
    refuse_unknown(plan, settings, LogConfig, BrokerConfig)
    of_broker = {name: value for name, value in settings.items() if BrokerConfig.knows(name)}
    of_log = {name: value for name, value in settings.items() if name not in of_broker}
    load = make_load(rate=rate, record_bytes=record_bytes, batch_records=batch_records, skew=skew, idle=idle, keys=keys)
    return make_plan(
        LogConfig.resolve(config, of_log),
        BrokerConfig.resolve(config).replace(**of_broker),
        load,
        duration_ms=span_ms("duration", duration, 1, LONGEST_MS),
        start_ms=MIDNIGHT_MS + (0 if start is None else times.milliseconds("start", start) % DAY_MS),
    )


def make_plan(config: LogConfig, broker: BrokerConfig, load: Load, *, duration_ms: int, start_ms: int) -> Plan:
    """Return the plan of checked arguments; raises `ConfigError` if the settings do not go with the load."""
    config.check_for_writing()
    _refuse(config, load)
    is_append_time = config.message_timestamp_type == "LogAppendTime"
    simulation = Simulation(
        config,
        broker,
        stretches(load, start_ms, append_time=is_append_time),
        start_ms=start_ms,
        end_ms=start_ms + duration_ms,
        keys=load.keys,
        load_period_ms=DAY_MS if load.idle else 1,
    )
    simulation.run()
    return facts_of(simulation, config, broker, load)


def _refuse(config: LogConfig, load: Load) -> None:
    size = batch_bytes_of(load)
    limits = {"max.message.bytes": config.max_message_bytes, "segment.bytes": config.effective_segment_bytes}
    for name, limit in limits.items():
        if size > limit:
            raise ConfigError(f"{name} = {limit} refuses every batch of the load: one has {size} bytes")
    if load.skew_ms > config.message_timestamp_before_max_ms:
        raise ConfigError(
            f"message.timestamp.before.max.ms = {config.message_timestamp_before_max_ms} refuses records that are "
            f"{load.skew_ms} ms old; skew is the most that the load has"
        )
    if config.compacts and load.keys is None:
        raise ConfigError("cleanup.policy has compact: a plan needs keys, the number of different keys of the records")
