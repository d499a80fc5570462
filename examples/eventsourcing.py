"""Event sourcing: recorders for the library `eventsourcing` (PyPI), which keep its events in a kstore.

    python examples/eventsourcing.py demo [DIRECTORY]        # a small bank: threads, snapshots, a reader beside it

An application uses them with `PERSISTENCE_MODULE` set to this module (copy it under a name of your own) and with
`KSTORE_PATH` set to the directory of a store. One process writes at a time; others read with `KSTORE_MODE=r`.

All events of an application are in one partition, so that its offsets are the application's sequence: the event at
offset n is notification n + 1. The key is the aggregate's id, the value the event's state; its topic and version are
headers. One `save` is one batch, tracking included: after a crash all of it is there or none. It is on the disk when
`save` returns; others may read it a moment before. A batch has at most `MAX_SAVE_BYTES`.

Versions of many aggregates are in that one partition, and two writers conflict only if they write the same version of
the same aggregate. A recorder knows where each version of each aggregate is (from one scan when it is made), and looks
there for a conflict. It then appends with `expected_offset`: if another recorder appended after that look, nothing is
stored, and this one reads what was appended and looks again.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

# The library has this file's name, and a program's own directory comes first in the path.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

# ruff: noqa: E402
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    IntegrityError,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.utils import resolve_topic

import kstore

MAX_SAVE_BYTES = 16 << 20
SUBSCRIPTION_POLL_S = 0.2  # a stopped subscription ends within this time


def key_of(originator_id: UUID | str) -> bytes:
    """The key of an aggregate's records. A text id must not begin with "urn:uuid:"."""
    return (originator_id.urn if isinstance(originator_id, UUID) else originator_id).encode()


def event_of(record: kstore.Record) -> StoredEvent:
    text = (record.key or b"").decode()
    topic, version = (value or b"" for _, value in record.headers)
    originator_id = UUID(text) if text.startswith("urn:uuid:") else text
    return StoredEvent(originator_id, int(version), topic.decode(), record.value or b"")


class Recorder:
    """A partition of events and tracking, and where each version of each aggregate is in it. Thread-safe."""

    def __init__(self, log: kstore.Log, *, after: kstore.Log | None = None) -> None:
        """With `after`, what that log holds is on the disk before anything is written here."""
        self.log, self._after = log, after
        self._lock = threading.Lock()
        self._aggregates: dict[bytes, dict[int, int]] = {}  # version to offset
        self._tracked: dict[bytes, int] = {}  # application to notification id
        self._newest = -1  # offset of the newest event
        self._next_offset = log.log_start_offset
        self._caught_up()

    def _caught_up(self) -> None:
        """Take in what was appended since the last call. The caller holds the lock."""
        end = self.log.log_end_offset
        for record in self.log.read(self._next_offset, end_offset=end) if end > self._next_offset else ():
            key = record.key or b""
            if record.headers:
                version = event_of(record).originator_version
                self._aggregates.setdefault(key, {})[version] = self._newest = record.offset
            else:
                self._tracked[key] = int(record.value or b"")
        self._next_offset = end

    def _refuse_conflicts(self, events: Sequence[StoredEvent], tracking: Tracking | None) -> None:
        names = [(key_of(each.originator_id), each.originator_version) for each in events]
        for key, version in names:
            if version in self._aggregates.get(key, ()):
                raise IntegrityError(f"version {version} of {key.decode()} is recorded already")
        if len(set(names)) < len(names):
            raise IntegrityError(f"the same version of an aggregate twice: {names}")
        if tracking is not None:
            newest = self._tracked.get(tracking.application_name.encode(), -1)
            if tracking.notification_id <= newest:
                raise IntegrityError(f"{tracking} is not above {newest}, which is recorded already")

    def _insert(self, events: Sequence[StoredEvent], tracking: Tracking | None = None) -> list[int]:
        """Store all or nothing, on the disk when this returns; the notification ids."""
        records: list[Any] = []
        for each in events:
            headers = (("topic", each.topic.encode()), ("version", b"%d" % each.originator_version))
            records.append((key_of(each.originator_id), each.state, None, headers))
        if tracking is not None:
            records.append((tracking.application_name.encode(), b"%d" % tracking.notification_id))
        if not records:
            return []
        if self._after is not None:
            self._after.flush()
        with self._lock:
            while True:
                self._caught_up()
                self._refuse_conflicts(events, tracking)
                try:
                    info = self.log.append_many(records, atomic=True, expected_offset=self._next_offset)
                    break
                except kstore.UnexpectedOffsetError:
                    continue  # another recorder of this log was faster
        self.log.flush()  # outside of the lock: threads that save at the same time share one sync
        return [info.first_offset + 1 + number for number in range(len(events))]


class KStoreAggregateRecorder(Recorder, AggregateRecorder):
    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        self._insert(stored_events)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        with self._lock:
            self._caught_up()
            versions = self._aggregates.get(key_of(originator_id), {}).copy()
        chosen = [each for each in versions if (gt is None or each > gt) and (lte is None or each <= lte)]
        offsets = [versions[each] for each in sorted(chosen, reverse=desc)]
        # One record each, or none: compaction removes snapshots that newer ones replace.
        found = (record for offset in offsets for record in self.log.read(offset, end_offset=offset + 1))
        return [event_of(record) for record in islice(found, limit)]


class KStoreApplicationRecorder(KStoreAggregateRecorder, ApplicationRecorder):
    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        return self._insert(stored_events, kwargs.get("tracking"))

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        first = max((start or 0) + (not inclusive_of_start), 1)
        end = self.log.log_end_offset if stop is None else min(self.log.log_end_offset, stop)
        return (
            list(islice(notifications(self.log.read(first - 1, end_offset=end), topics), limit)) if first <= end else []
        )

    def max_notification_id(self) -> int | None:
        with self._lock:
            self._caught_up()
            return self._newest + 1 or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        return KStoreSubscription(self, gt, topics)


def notifications(records: Iterable[kstore.Record], topics: Sequence[str]) -> Iterator[Notification]:
    for record in records:
        if record.headers and (not topics or event_of(record).topic in topics):
            yield Notification(**vars(event_of(record)), id=record.offset + 1)


class KStoreSubscription(Subscription[KStoreApplicationRecorder]):
    """Follows the log, also one that another process writes."""

    _found: Iterator[Notification] = iter(())

    def __next__(self) -> Notification:
        while not self._has_been_stopped:
            for notification in self._found:
                self._last_notification_id = notification.id
                return notification
            begin = self._last_notification_id or 0
            records = self._recorder.log.read(begin, follow=True, timeout=SUBSCRIPTION_POLL_S)
            self._found = notifications(records, self._topics)
        raise StopIteration


class KStoreTrackingRecorder(Recorder, TrackingRecorder):
    def insert_tracking(self, tracking: Tracking) -> None:
        self._insert((), tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        with self._lock:
            self._caught_up()
            return self._tracked.get(application_name.encode())


class KStoreProcessRecorder(KStoreTrackingRecorder, KStoreApplicationRecorder, ProcessRecorder):
    pass


class Factory(InfrastructureFactory[KStoreTrackingRecorder]):
    """What the library makes recorders with, from `KSTORE_PATH` and `KSTORE_MODE` ("a" or "r")."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        path, self._mode = self.env.get("KSTORE_PATH", ""), self.env.get("KSTORE_MODE", "a")
        if not path:
            raise ValueError("KSTORE_PATH is not set: it names the directory of the store")
        self.store = kstore.Store.open(path, self._mode)

    def close(self) -> None:
        self.store.close()

    def log(self, topic: str) -> kstore.Log:
        if self._mode == "a" and topic not in self.store.topics:
            policy = "delete" if topic == "events" else "compact"  # of the others the newest of each key is enough
            self.store.create_topic(
                topic, 1, config={"cleanup.policy": policy, "max.message.bytes": str(MAX_SAVE_BYTES)}
            )
        return self.store.log(topic, 0)

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        # After a power failure no snapshot is newer than the events.
        return KStoreAggregateRecorder(self.log(purpose), after=self.log("events") if purpose != "events" else None)

    def application_recorder(self) -> ApplicationRecorder:
        return KStoreApplicationRecorder(self.log("events"))

    def tracking_recorder(self, tracking_recorder_class: Any = None) -> KStoreTrackingRecorder:
        named = self.env.get(self.TRACKING_RECORDER_TOPIC)
        chosen = tracking_recorder_class or (resolve_topic(named) if named else KStoreTrackingRecorder)
        return chosen(self.log("tracking"))

    def process_recorder(self) -> ProcessRecorder:
        return KStoreProcessRecorder(self.log("events"))


# ---- The demo: a bank.


class Account(Aggregate):
    @event("Opened")
    def __init__(self, owner: str, balance: int) -> None:
        self.owner = owner
        self.balance = balance

    @event("Moved")
    def move(self, amount: int) -> None:
        self.balance += amount


class Bank(Application[UUID]):
    snapshotting_intervals: ClassVar = {Account: 10}

    def open(self, owner: str, balance: int) -> UUID:
        account = Account(owner, balance)
        self.save(account)
        return account.id

    def transfer(self, giver: UUID, taker: UUID, amount: int) -> int:
        """Both accounts in one save; done again where another thread was faster. How often it was."""
        for tries in range(1_000_000):
            accounts = [self.repository.get(each) for each in (giver, taker)]
            for account, change in zip(accounts, (-amount, amount), strict=True):
                account.move(change)
            try:
                self.save(*accounts)
                return tries
            except IntegrityError:
                continue
        raise AssertionError("not reached")


def bank(directory: str, mode: str = "a") -> Bank:
    return Bank(env={"PERSISTENCE_MODULE": __name__, "KSTORE_PATH": directory, "KSTORE_MODE": mode})


def show(directory: str) -> None:
    """What a process beside the writer sees: newest snapshots by `store.table`, and the whole by the library."""
    reader = bank(directory, "r")
    store: kstore.Store = reader.factory.store
    for topic in ("events", "snapshots"):
        newest = {str(each.originator_id)[:4]: each.originator_version for each in map(event_of, store.table(topic))}
        print(f"  newest version of each aggregate in {topic}: {newest}")
    ids = [event_of(each).originator_id for each in store.table("events")]
    print(f"  balances: { {(a := reader.repository.get(each)).owner: a.balance for each in ids} }")
    reader.close()


def demo(directory: str) -> None:
    with bank(directory) as app:
        accounts = [app.open(owner, 100) for owner in ("Ada", "Blaise", "Carl", "Dorothy")]
        again = [0] * 4

        def work(number: int) -> None:
            chance = random.Random(number)
            for _ in range(25):
                again[number] += app.transfer(*chance.sample(accounts, 2), chance.randint(1, 9))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"4 threads made 100 transfers between 4 accounts, and met {sum(again)} conflicts.")
        print(f"Newest notification: {app.recorder.max_notification_id()}. Another process, while the store is open:")
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, "show", directory], check=True)
    print("Opened again:")
    show(directory)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["demo"]:
            with tempfile.TemporaryDirectory() as made:
                demo(made)
        case ["demo", directory]:
            demo(directory)
        case ["show", directory]:
            show(directory)
        case _:
            sys.exit(f"usage: {sys.argv[0]} demo [DIRECTORY]")
