"""`Store.aread`: the records of topics as a stream. Writers in this process wake a stream that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from kstore.base import arguments
from kstore.errors import KStoreError
from kstore.log.async_stream import Stream
from kstore.log.reading.view import View
from kstore.log.writing.writer import Writer, watching
from kstore.store.topics._consume import ConsumerIterator, ConsumerRecord
from kstore.store.topics.topic_follow import FollowedRead, TopicPass
from kstore.store.topics.topic_reader import TopicRead, TopicReader

T = TypeVar("T")

Place = tuple[str, int]

NEWS_SECONDS = 0.25  # how soon a follower that writers wake notices new partitions


class TopicSource:
    """The new records of some topics; a `Source` of `log.async_stream`.

    Nothing wakes a stream for new partitions, so it checks for them four times a second.
    """

    longest_wait: float | None = NEWS_SECONDS
    is_over = False

    def __init__(self, passes: list[TopicPass]) -> None:
        self._followed: list[tuple[TopicPass, FollowedRead]] = [(each, FollowedRead(each, None)) for each in passes]

    @property
    def _views(self) -> list[View]:
        return [view for _, followed in self._followed for view in followed.views]

    @property
    def is_woken(self) -> bool:
        """Whether all writers are in this process, so that they wake the reader."""
        return all(isinstance(view, Writer) for view in self._views)

    def has_news(self) -> bool:
        """Return whether any of the topics may have new records or partitions."""
        return any(_explained(each, followed.has_news) for each, followed in self._followed)

    def look(self) -> list[ConsumerIterator]:
        """Return the records that were appended since the last call, topic by topic."""
        rounds = [(each, _explained(each, followed.look)) for each, followed in self._followed]
        return [each.records([news]) for each, news in rounds if news]

    def watched(self, ring: Callable[[], None]) -> AbstractContextManager[None]:
        """Make the writers that are in this process call `ring` while the block runs."""
        return watching(self._views, ring)


def _explained(each: TopicPass, look: Callable[[], T]) -> T:
    try:
        return look()
    except KStoreError as error:
        raise each.explain(error) from None


def stream_of(
    reader: TopicReader,
    topics: str | Iterable[str],
    wanted: TopicRead,
    offsets: Mapping[int, int] | Mapping[Place, int] | None,
) -> Stream[ConsumerRecord]:
    """Read topics; see `Store.aread`."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise ValueError("topics is empty; one topic at least is needed")
    if len(names) > 1 and wanted.partitions is not None:
        raise ValueError(f"partitions is for a single topic, not for {len(names)}")
    timeout = arguments.seconds("timeout", wanted.timeout)
    starts = _by_topic(names, offsets)
    passes = [reader.begin(topic, wanted._replace(offsets=starts.get(topic))) for topic in names]
    if wanted.follow:
        return Stream([], TopicSource(passes), timeout)
    return Stream([each.records(each.rounds()) for each in passes])


def _by_topic(names: tuple[str, ...], offsets: object) -> dict[str, dict[int, int]]:
    """Return the offsets by topic; their keys are `(topic, partition)`, or partitions of the only topic."""
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be a mapping of partitions to offsets, not {type(offsets).__name__}")
    starts: dict[str, dict[int, int]] = {}
    for place, offset in offsets.items():
        if not isinstance(place, tuple):
            if len(names) > 1:
                raise ValueError(f"offsets has the key {place!r:.60}; with several topics it has (topic, partition)")
            topic, number = names[0], place
        elif len(place) != 2:
            raise ValueError(f"offsets has the key {place!r:.60}, which is no (topic, partition)")
        else:
            topic, number = place
            if topic not in names:
                raise ValueError(f"offsets has topic {topic!r:.60}, which topics has not")
        starts.setdefault(topic, {})[number] = offset
    return starts
