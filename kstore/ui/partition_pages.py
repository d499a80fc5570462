"""The pages about one partition: its timeline and segments, records, batches, producers, and a check."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kstore.base import optional
from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError, OffsetOutOfRangeError
from kstore.explained import lookup_picture, record_picture, timeline_picture
from kstore.explained.explanation import ExplainedSegment, Explanation
from kstore.explained.record_words import headline
from kstore.explained.segment_words import fate, hold_words, offsets, roll_words
from kstore.explained.time_scale import clock_of
from kstore.log.log import Log
from kstore.store.disk_usage import log_bytes
from kstore.ui import query_values, record_view
from kstore.ui.directory_facts import PAGE_ROWS, Paged, fault_of, lags_of, row_of, version_of, version_text
from kstore.ui.page_templates import USER, Templates, clock_time, seconds
from kstore.ui.partition_facts import CHECK_BYTES, CHECK_SEGMENTS, Explanations, batches_from, check_segments
from kstore.ui.plan_form import plan_address
from kstore.ui.query_values import BadRequestError, NotFoundError
from kstore.ui.viewed_store import Place, ViewedStore

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["PartitionPages", "named_place"]

MAX_PAGE = 10_000_000
REMOTE_SEGMENTS = 200


def named_place(request: Request) -> Place:
    """Return the partition that the path of a request names, which need not exist."""
    number = str(request.path_params["number"])
    if not (number.isascii() and number.isdecimal() and len(number) <= 10):
        raise NotFoundError(f"the topic has no partition {number[:60]!r}")
    return Place(str(request.path_params["topic"]), int(number))


def place_of(viewed: ViewedStore, request: Request) -> Place:
    """Return the partition that the path of a request names; raises `NotFoundError` if there is none."""
    return viewed.place(*named_place(request))


class PartitionPages:
    """The endpoints of these pages. Thread-safe."""

    def __init__(self, viewed: ViewedStore, templates: Templates) -> None:
        self._viewed = viewed
        self._templates = templates
        self._explanations = Explanations(viewed)
        self._response = optional.starlette(USER, "starlette.responses").HTMLResponse

    def _page(self, name: str, place: Place, here: str, **facts: Any) -> Response:
        now = self._viewed.clock()
        address = f"/partition/{place.topic}/{place.number}"
        body = self._templates.render(name, here="directory", part=here, place=place, address=address, now=now, **facts)
        return self._response(body)  # type: ignore[no-any-return]

    # The timeline and the segments.

    def overview(self, request: Request) -> Response:
        """Show the timeline, the marks and the segments; with `segment` also one of them in words."""
        place = place_of(self._viewed, request)
        axis = query_values.choice(request, "axis", "time", "offset")
        page = query_values.whole(request, "page", 1, 1, MAX_PAGE)
        base_offset = query_values.maybe_whole(request, "segment")
        row = row_of(self._viewed, place)
        explanation, problem, note = None, row.error or row.fault, None
        if fs.is_mounted(self._viewed.store.paths[0]) and row.segments > REMOTE_SEGMENTS:
            note = f"Of a log in an object store at most {REMOTE_SEGMENTS} segments are explained: each costs requests."
        elif row.error is None:
            try:
                explanation = self._explanations.of(place)
            except KStoreError as error:
                problem = f"{type(error).__name__}: {error}"
        facts: dict[str, Any] = {
            "row": row,
            "version": "" if explanation is None else _version(explanation),
            "is_awaited": explanation is None and problem is None and note is None,
            "problem": problem,
            "axis": axis,
            "explanation": explanation,
            "note": note,
        }
        facts["lags"] = lags_of(self._viewed.groups(), row)
        if explanation is None:
            return self._page("partition", place, "overview", **facts)
        chosen = None if base_offset is None else _segment_of(explanation, base_offset)
        paged = Paged.of(len(explanation.segments), page)
        clock = _clock(explanation)
        link = partial(_segment_address, axis, page)
        facts |= {
            "paged": paged,
            "chosen": chosen,
            "timeline": self._timeline(explanation, axis, link),
            "segments": [
                _segment_facts(explanation, each, clock) for each in explanation.segments[paged.first : paged.end]
            ],
            "link": link,
            "plan": plan_address(explanation, row),
        }
        if chosen is not None:
            facts["said"] = _segment_facts(explanation, chosen)
        return self._page("partition", place, "overview", **facts)

    def _timeline(self, explanation: Explanation, axis: Any, link: Callable[[int], str]) -> Any:
        if not explanation.segments:
            return None
        drawn = timeline_picture.picture(explanation, axis=axis, link=link, styled=False, prefix="drawn-timeline")
        return self._templates.svg(drawn)

    # Records.

    def records(self, request: Request) -> Response:
        """Show records from an offset or a time on, or those with a key; the newest records by default."""
        place = place_of(self._viewed, request)
        offset = query_values.maybe_whole(request, "offset")
        moment = query_values.moment(request, "time", self._viewed.clock())
        key = query_values.text(request, "key")
        how = query_values.choice(request, "match", "is", "contains")
        log = self._viewed.log(place)
        view = self._viewed.view(place)
        start, end = view.log_start_offset, view.log_end_offset
        notes: list[str] = []
        is_newest = offset is None and moment is None and not key
        if moment is not None:
            found_at = log.offset_for_timestamp(max(moment, 0))
            offset = end if found_at is None else found_at.offset
            if found_at is None:
                notes.append(f"No record has a timestamp of {clock_time(max(moment, 0))} or later.")
        if offset is None:
            offset = start if key else max(start, end - record_view.PAGE_RECORDS)
        if not start <= offset <= end:
            notes.append(f"The offset {offset} is not in the log, which has {start} to {end}.")
            offset = min(max(offset, start), end)
        if key:
            found = record_view.find_records(log, offset, _key_of(key), exact=how == "is")
        else:
            found = record_view.records_from(log, offset)
        return self._page(
            "records",
            place,
            "records",
            found=found,
            shown=found.records[::-1] if is_newest else found.records,
            offset=offset,
            start=start,
            end=end,
            key=key,
            match=how,
            asked_time=query_values.text(request, "time"),
            notes=notes,
            problem=found.error or (fault_of(view) if found.is_end else None),
            is_newest=is_newest,
            version=version_of(row_of(self._viewed, place)),
            previous=max(start, offset - record_view.PAGE_RECORDS),
        )

    def record(self, request: Request) -> Response:
        """Show one record: its key, value and headers, where it is, how a lookup finds it, and when it goes."""
        place = place_of(self._viewed, request)
        offset = query_values.maybe_whole(request, "offset")
        if offset is None:
            raise BadRequestError("offset is missing: which record is it?")
        log = self._viewed.log(place)
        view = self._viewed.view(place)
        start, end = view.log_start_offset, view.log_end_offset
        if not start <= offset < end:
            raise NotFoundError(f"offset {offset} is not in {place}, which has {start} to {end - 1}")
        explanation, picture, lookup, problem = None, None, None, None
        try:
            explanation = log.explain(at=self._viewed.clock(), offset=offset)
            if explanation.record is not None:
                picture = self._templates.svg(record_picture.picture(explanation, styled=False, prefix="drawn-life"))
                lookup = self._templates.svg(lookup_picture.picture(explanation, styled=False, prefix="drawn-lookup"))
        except OffsetOutOfRangeError:
            raise
        except KStoreError as error:
            problem = f"{type(error).__name__}: {error}"
        content, damage = _content(log, offset)
        return self._page(
            "record",
            place,
            "records",
            offset=offset,
            start=start,
            end=end,
            content=content,
            explanation=explanation,
            headline=headline(explanation, explanation.record) if explanation and explanation.record else None,
            picture=picture,
            lookup=lookup,
            problem=damage or problem,
        )

    # Batches, producers, a check.

    def batches(self, request: Request) -> Response:
        """Show batches from an offset on, and how large they are."""
        place = place_of(self._viewed, request)
        offset = query_values.maybe_whole(request, "offset")
        log = self._viewed.log(place)
        view = self._viewed.view(place)
        start, end = view.log_start_offset, view.log_end_offset
        offset = start if offset is None else min(max(offset, start), end)
        found, problem = None, None
        try:
            found = batches_from(log, offset)
        except CorruptRecordError as error:
            problem = f"{type(error).__name__}: {error}"
        most = max((each.batches for each in found.classes), default=1) if found is not None else 1
        return self._page(
            "batches", place, "batches", found=found, offset=offset, start=start, end=end, problem=problem, most=most
        )

    def producers(self, request: Request) -> Response:
        """Show what the log knows of producers, and which transactions are open."""
        place = place_of(self._viewed, request)
        page = query_values.whole(request, "page", 1, 1, MAX_PAGE)
        log = self._viewed.log(place)
        states = log.producer_states()
        open_ones = [state for state in states if state.current_txn_first_offset >= 0]
        paged = Paged.of(len(states), page)
        return self._page(
            "producers",
            place,
            "producers",
            paged=paged,
            states=states[paged.first : paged.end],
            open_ones=open_ones[:PAGE_ROWS],
            open_count=len(open_ones),
            stable=log.last_stable_offset,
            end=log.log_end_offset,
        )

    def check(self, request: Request) -> Response:
        """Ask whether to check the partition, or show the findings of a check."""
        place = place_of(self._viewed, request)
        runs = query_values.choice(request, "run", "no", "yes") == "yes"
        base_offset = query_values.maybe_whole(request, "segment")
        view = self._viewed.view(place)
        checked = check_segments(self._viewed, place, base_offset) if runs else None
        return self._page(
            "check",
            place,
            "check",
            checked=checked,
            size_bytes=log_bytes(view.directory),
            most_bytes=CHECK_BYTES,
            segments=len(view.segments.items),
            most_segments=CHECK_SEGMENTS,
            base_offset=base_offset,
            bases=view.segments.bases[-200:],
        )


def _version(explanation: Explanation) -> str:
    """Return `version_of` the log as it was explained."""
    segments = explanation.segments
    size_bytes = sum(segment.size_bytes for segment in segments)
    return version_text(explanation.log_start_offset, explanation.log_end_offset, len(segments), size_bytes)


def _segment_address(axis: str, page: int, base_offset: int) -> str:
    return f"?axis={axis}&page={page}&segment={base_offset}#segment"


def _segment_of(explanation: Explanation, base_offset: int) -> ExplainedSegment:
    for segment in explanation.segments:
        if segment.base_offset == base_offset:
            return segment
    raise NotFoundError(f"there is no segment {base_offset}; it may have been deleted")


def _clock(explanation: Explanation) -> Callable[[int | None], str]:
    """Return the function that writes when segments go: the time of the day, if all go on the day of now."""
    ends = (time for each in explanation.segments for time in (each.earliest_ms, each.latest_ms))
    return clock_of((explanation.at_ms, *ends))


def _segment_facts(
    explanation: Explanation, segment: ExplainedSegment, clock: Callable[[int | None], str] = seconds
) -> dict[str, Any]:
    """Return a segment, and a few words about it."""
    entries = segment.offset_index_entries
    return {
        "segment": segment,
        "offsets": offsets(segment.base_offset, segment.next_offset),
        "rolled": roll_words(segment),
        "kept": hold_words(segment.holds),
        "goes": fate(segment, clock, explanation.at_ms),
        "density": segment.size_bytes // entries if entries else None,
    }


def _key_of(text: str) -> bytes:
    """Return the bytes of a key: hexadecimal digits after `0x`, or text."""
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise BadRequestError(f"key is {text[:60]!r}: after 0x hexadecimal digits are allowed") from None
    return text.encode("utf-8", "surrogatepass")


def _content(log: Log, offset: int) -> tuple[dict[str, Any] | None, str | None]:
    """Return the content of a record, None if no record has the offset; and why it cannot be read."""
    try:
        found = record_view.record_at(log, offset)
        if found is None:
            return None, None
        record, batch = found
        headers = record.headers
        shown = [(name[:200], record_view.preview(value)) for name, value in headers[:100]]
        return {
            "record": record_view.as_shown(record, batch),
            "key": record_view.whole(record.key),
            "value": record_view.whole(record.value),
            "headers": shown,
            "headers_count": len(headers),
            "timestamp_type": batch.timestamp_type,
            "producer_epoch": batch.producer_epoch,
            "leader_epoch": batch.partition_leader_epoch,
        }, None
    except OffsetOutOfRangeError:
        raise
    except KStoreError as error:
        return None, f"{type(error).__name__}: {error}"
