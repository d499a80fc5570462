"""`Store.aread`: the records of topics as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import TypeVar

from kstore.base import arguments
from kstore.errors import KStoreError
from kstore.log.async_stream import Stream
from kstore.log.log_watch import await_news
from kstore.store.topics._consume import ConsumerIterator, ConsumerRecord
from kstore.store.topics.topic_follow import FollowedRead, TopicPass
from kstore.store.topics.topic_reader import TopicRead, TopicReader

T = TypeVar("T")

Place = tuple[str, int]

NEWS_SECONDS = 0.25  # how soon a follower notices new partitions and deleted topics


class TopicSource:
    """The new records of some topics; a `Source` of `log.async_stream`.

    Nothing wakes a stream for new partitions, so it checks for them four times a second.
    """

    is_over = False

    def __init__(self, passes: list[TopicPass]) -> None:
        self._followed: list[tuple[TopicPass, FollowedRead]] = [(each, FollowedRead(each, None)) for each in passes]

    async def news(self, deadline: float) -> bool:
        """Wait for new records or partitions; return False at the deadline."""
        views = [view for _, followed in self._followed for view in followed.views]
        return await await_news(views, self._has_news, deadline - monotonic(), longest_wait=NEWS_SECONDS)

    def _has_news(self) -> bool:
        return any(_explained(each, followed.has_news) for each, followed in self._followed)

    def look(self) -> list[ConsumerIterator]:
        """Return the records that were appended since the last call, topic by topic."""
        rounds = [(each, _explained(each, followed.look)) for each, followed in self._followed]
        return [each.records([news]) for each, news in rounds if news]


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
    names = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
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
