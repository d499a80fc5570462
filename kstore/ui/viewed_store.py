"""`ViewedStore`: the store that the pages show, opened in mode "r", and what threads find out about all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kstore.disk import fs
from kstore.errors import KStoreError, StorageError
from kstore.explained.explained_disk import DiskExplanation
from kstore.files.stream_positions import groups_with_positions, read_group
from kstore.log.hosted_log import HostedLog
from kstore.log.log import Log
from kstore.log.reading.read_only_view import ReadOnlyView
from kstore.store.catalog import look
from kstore.store.disk_usage import log_bytes
from kstore.store.store import Store
from kstore.ui.late_value import LateValue
from kstore.ui.query_values import NotFoundError

__all__ = ["UNPACKED_BYTES", "Committed", "Groups", "Place", "Sizes", "ViewedStore"]


UNPACKED_BYTES = 64 << 20
"""A batch that would decompress to more is an error on a page."""

_DISK_AGE_S = 10.0


class Place(NamedTuple):
    """A partition by its topic and number."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Sizes(NamedTuple):
    """The bytes of the `.log` files of all partitions."""

    by_place: Mapping[Place, int]
    total: int


class Committed(NamedTuple):
    """The position of a group in one partition."""

    group: str
    place: Place
    offset: int
    written_ms: int
    metadata: str
    kind: str
    """"group" for a consumer group, "stream" for a streaming query or an export."""


class Groups(NamedTuple):
    """The positions of all groups, and errors of groups that cannot be read."""

    positions: tuple[Committed, ...]
    errors: tuple[str, ...]

    def of(self, place: Place) -> list[Committed]:
        """Return the positions in one partition."""
        return [position for position in self.positions if position.place == place]

    def without_position(self, place: Place) -> list[str]:
        """Return the consumer groups that have a position in a partition's topic, but none in this partition."""
        of_topic = [each for each in self.positions if each.kind == "group" and each.place.topic == place.topic]
        here = {each.group for each in of_topic if each.place == place}
        return sorted({each.group for each in of_topic} - here)


class ViewedStore:
    """A store in mode "r" with what its pages need. Close it after use. Thread-safe."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        config: Mapping[str, str] | None = None,
        clock: Callable[[], int],
        title: str = "",
        patience: float = 0.2,
    ) -> None:
        """Open the store; raises the errors of `Store.open`. The pages call it `title`.

        A page waits up to `patience` seconds for sizes and positions, and is shown without them after that.
        """
        self.store = Store.open(list(paths), mode="r", config=config, clock=clock)
        self.clock = clock
        self.patience = patience
        self.title = title or ", ".join(paths)
        self._sizes = LateValue(self._measure, patience=patience)
        self._groups = LateValue(self._read_groups, patience=patience)
        self._disk = LateValue(self._explain_disk, patience=2 * patience, max_age=_DISK_AGE_S)
        self._disk_progress = (0, 0)
        self._is_closing = False

    def close(self) -> None:
        """Close the store and its logs."""
        self._is_closing = True
        self.store.close()

    def places(self, matching: str = "") -> list[Place]:
        """Return the partitions whose topic contains this text, in order. Opens no log."""
        return [
            Place(topic, number)
            for topic in self.store.topics
            if matching in topic
            for number in self.store.partitions(topic)
        ]

    def place(self, topic: str, number: int) -> Place:
        """Return a partition; raises `NotFoundError` if there is none."""
        if topic not in self.store.topics:
            raise NotFoundError(f"there is no topic {topic[:300]!r}")
        if number not in self.store.partitions(topic):
            raise NotFoundError(f"the topic {topic} has no partition {number}")
        return Place(topic, number)

    def log(self, place: Place) -> Log:
        """Return the log of a partition, opened if necessary; raises the errors of `Log.open`."""
        log = self.store.log(*place)
        HostedLog(log).view.max_decompressed_bytes = UNPACKED_BYTES
        return log

    def view(self, place: Place) -> ReadOnlyView:
        """Return the view of a partition, refreshed."""
        view = HostedLog(self.log(place)).view
        assert isinstance(view, ReadOnlyView)
        view.refresh()
        return view

    def sizes(self) -> Sizes | None:
        """Return the sizes of all partitions; None if they are not known yet."""
        return self._sizes.get()

    def groups(self) -> Groups | None:
        """Return the positions of all groups; None if they are not known yet."""
        return self._groups.get()

    def disk(self) -> DiskExplanation | KStoreError | None:
        """Return what takes the space of the directories, or why that is not known; None if it is being found out."""
        return self._disk.get()

    def disk_found(self) -> DiskExplanation | KStoreError | None:
        """Return what `disk` has found out at last."""
        return self._disk.found()

    @property
    def disk_progress(self) -> tuple[int, int]:
        """How many of how many partitions were looked at to find out what takes the space."""
        return self._disk_progress

    def _explain_disk(self) -> DiskExplanation | KStoreError:
        def note(done: int, total: int) -> None:
            if self._is_closing:
                raise KStoreError("the server stops")
            self._disk_progress = done, total

        try:
            return self.store.explain(at=self.clock(), progress=note)
        except KStoreError as error:
            return error

    def _measure(self) -> Sizes:
        found: dict[Place, int] = {}
        try:
            entries = look(self.store.paths).entries
        except StorageError:  # the pages show the error when they list the directory
            entries = []
        for entry in entries:
            found[Place(entry.topic, entry.partition)] = log_bytes(entry.path)
        return Sizes(found, sum(found.values()))

    def _read_groups(self) -> Groups:
        positions: list[Committed] = []
        errors: list[str] = []
        try:
            for group in self.store.groups:
                positions += self._committed(group)
        except KStoreError as error:
            errors.append(str(error))
        for root in self.store.paths:
            positions += _streams(root, errors)
        return Groups(tuple(positions), tuple(errors))

    def _committed(self, group: str) -> Iterable[Committed]:
        for (topic, number), offset in self.store.committed_offsets(group).items():
            place = Place(topic, number)
            yield Committed(group, place, int(offset), offset.commit_timestamp, offset.metadata, "group")


def _streams(root: str, errors: list[str]) -> Iterable[Committed]:
    """Yield the positions of streaming queries and exports; add an error for each file that cannot be read."""
    if fs.is_mounted(root):
        return
    try:
        groups = groups_with_positions(root)
    except StorageError as error:
        errors.append(str(error))
        return
    for group in groups:
        try:
            found = read_group(root, group)
        except StorageError as error:
            errors.append(str(error))
            continue
        if found is None:
            continue
        for (topic, number), offset in sorted(found.offsets.items()):
            yield Committed(group, Place(topic, number), offset, found.written_ms, "", "stream")
