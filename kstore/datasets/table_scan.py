"""One scan of a dataset: which ranges of offsets are read, and the batches of rows that the filter selects.

No engine applies a filter again that it has passed to a dataset. Invariant: every batch that a scan returns has exactly
the rows that the whole filter selects; ranges and the order of reading only save work.

With a filter, first only its columns are read. The other columns are read afterwards, for the selected rows alone, or
together with the first ones as long as most rows are selected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kstore.base import optional
from kstore.datasets.pruning import Interval
from kstore.datasets.row_filters import RowFilter
from kstore.datasets.spans import Span, joined
from kstore.datasets.table_source import MAX_LATENESS, Part, TableOptions, TableSource
from kstore.errors import KStoreError
from kstore.log.column_reads import CHUNK_BYTES, read_kept
from kstore.log.hosted_log import HostedLog
from kstore.log.lateness import LatenessCheck
from kstore.log.reading.remote_view import RemoteView
from kstore.log.reading.view import out_of_range
from kstore.objects.object_reader import Cost

if TYPE_CHECKING:
    from kstore.columns._columns import Columns
    from kstore.columns.value_decoding import Decoding
    from kstore.log.log import Log
    from kstore.log.reading.read_options import Isolation

IN_LOG = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
IN_NAMES = {"partition", "topic"}  # columns with the same value in all rows of a partition
IN_RANGES = {*IN_NAMES, "offset", "timestamp"}  # columns whose conditions narrow the ranges of offsets
FEW_OFFSETS = 65_536  # one thread reads ranges of so many: several would read beyond the end
TOGETHER = 65_536  # offsets of a scan whose rows are returned as one batch
MOST_SELECTED = 65_536  # rows that are selected before their other columns are read
COUNTED_OFFSETS = 262_144  # of which the headers of batches are in memory at a time
DECODED_BYTES = 16 << 20  # of the records that are decoded together
MANY = 0.5  # from this share of selected rows on, all columns are read together


class Table(NamedTuple):
    """What a dataset is: its source, its columns, which rows it has, and the decoding of its values."""

    source: TableSource
    schema: Any
    options: TableOptions
    decoding: Decoding | None


class TableScan:
    """Reads the rows of a table that a filter selects. Not thread-safe."""

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        row_filter: RowFilter | None = None,
        only: tuple[str, int] | None = None,
    ) -> None:
        self._pa = optional.pyarrow("a dataset")
        self._table = table
        self._names = tuple(names)
        self._only = only
        self._filter = row_filter
        self._condition = None if row_filter is None else row_filter.condition
        self._tested = () if row_filter is None else row_filter.columns
        self._columns = (*self._tested, *(name for name in self._names if name not in self._tested))
        self.schema = self._schema_of(self._names)

    def _schema_of(self, names: Sequence[str]) -> Any:
        return self._pa.schema([self._table.schema.field(name) for name in names])

    def batches(self) -> Iterator[Any]:
        """Return the record batches; the ends of the logs are those at the call."""
        if self._table.options.latest:
            return self._latest()
        parts = self.parts()
        batches = self._read(parts)
        is_small = sum(span.end - span.start for part in parts for span in part.spans) <= TOGETHER
        return self._together(batches) if is_small and not self._decodes(self._columns) else batches

    def _together(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield few rows as one batch: an engine takes about half a millisecond for each."""
        table = self._pa.Table.from_batches(batches, schema=self.schema)
        yield from table.combine_chunks().to_batches()

    def _read(self, parts: list[Part]) -> Iterator[Any]:
        for part in parts:
            try:
                for span in part.spans:
                    yield from self._rows(part, span)
            except KStoreError as error:
                raise self._table.source.explained(part.topic, error) from None

    def cost(self) -> Cost:
        """Return the requests and bytes that reading the ranges takes of an object store."""
        found = [
            view.cost(*span)
            for part in self.parts()
            if isinstance(view := HostedLog(part.log).view, RemoteView)
            for span in part.spans
        ]
        return Cost(sum(each.requests for each in found), sum(each.bytes for each in found))

    # Which offsets are read.

    def parts(self) -> list[Part]:
        """Return the ranges to read, in the order of topic, partition and offset."""
        table, condition = self._table, self._condition
        places = self.places()
        if condition is not None and table.options.partitioned_by_key and "key" in self._tested:
            places = table.source.with_keys(places, condition.keys())
        logs = {place: table.source.log(*place) for place in places}
        versions = {place: table.source.present_version(log) for place, log in logs.items()}
        spans = {place: table.source.span(*place, table.options) for place in places}
        if condition is None:
            return [Part(*place, logs[place], (span,), versions[place]) for place, span in spans.items()]
        if not spans:
            return []
        widest = Interval(min(span.start for span in spans.values()), max(span.end for span in spans.values()) - 1)
        offsets = condition.offsets(widest) if "offset" in self._tested else [widest]
        moments = condition.times() if "timestamp" in self._tested else None
        parts = []
        for place, span in spans.items():
            log = logs[place]
            chosen = [
                Span(max(span.start, interval.low), min(span.end, interval.high + 1))
                for interval in offsets
                if "offset" not in self._tested
                or condition.may(*self._known(place), condition.within("offset", interval))
            ]
            if moments is not None:
                lateness = table.options.max_lateness
                chosen = [
                    part
                    for whole in chosen
                    for moment in moments
                    for part in table.source.spans_of_times(log, whole, *moment, lateness)
                ]
            parts.append(Part(*place, log, tuple(joined(chosen)), versions[place]))
        return parts

    def _known(self, place: tuple[str, int]) -> tuple[Any, ...]:
        assert self._condition is not None
        known = (self._condition.equals("partition", place[1]),)
        return (*known, self._condition.equals("topic", place[0])) if "topic" in self._table.schema.names else known

    def places(self) -> list[tuple[str, int]]:
        """Return the partitions that may have selected rows."""
        chosen = [place for place in self._table.source.places() if self._only in (None, place)]
        condition = self._condition
        if condition is None or not IN_NAMES.intersection(self._tested):
            return chosen
        return [place for place in chosen if condition.may(*self._known(place))]

    # Rows.

    def count(self) -> int:
        """Count the selected rows."""
        counting = TableScan(self._table, ["partition"], self._filter, self._only)
        return sum(batch.num_rows for batch in counting.batches())

    def _rows(self, part: Part, span: Span) -> Iterator[Any]:
        tested, others = set(self._tested), set(self._columns[len(self._tested) :])
        if tested <= IN_NAMES and others <= IN_NAMES:
            yield from self._equal_rows(part, span)
            return
        if tested <= IN_NAMES or set(self._in_log(self._columns)) <= set(self._in_log(self._tested)):
            for chunk in self._chunks(part, span, self._columns):
                yield from self._selected(part, chunk, self._columns)
            return
        offset, end = span
        is_narrow = tested <= IN_RANGES  # most rows of the range are selected, as far as the range could be narrowed
        while offset < end:
            if not is_narrow:
                offset = yield from self._in_two_steps(part, Span(offset, end))
            if offset < end:
                offset = yield from self._in_one_step(part, Span(offset, end))
            is_narrow = False

    def _equal_rows(self, part: Part, span: Span) -> Iterator[Any]:
        """Yield rows that are all the same, since every column is in the name of the partition."""
        mask = self._mask(self._in_name(part, 1, self._columns))
        if mask is not None and not mask.true_count:
            return
        for count in record_counts(part.log, span, self._table.options.isolation):
            if count:
                yield self._in_name(part, count, self._names)

    def _in_name(self, part: Part, count: int, names: Sequence[str]) -> Any:
        pa, schema = self._pa, self._schema_of(names or ["partition"])
        values = {"partition": part.number, "topic": part.topic}
        columns = [pa.repeat(pa.scalar(values[field.name], field.type), count) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema).select(list(names))  # it has rows without a column

    def _in_two_steps(self, part: Part, span: Span) -> Any:
        """Read the columns of the filter, then the others of the selected rows; return the offset to continue at.

        Ends early at a chunk of which most rows are selected.
        """
        waiting: list[Any] = []
        count, offset = 0, span.start
        for chunk in self._chunks(part, span, self._tested, with_offsets=True):
            mask = self._mask(self._batch(part, chunk, self._tested))
            selected = chunk.offsets if mask is None else chunk.offsets[mask.to_numpy(zero_copy_only=False)]
            if len(selected) > MANY * len(chunk):
                break
            offset = chunk.next_offset
            if len(selected):
                waiting.append(selected)
                count += len(selected)
            if count >= MOST_SELECTED:
                yield from self._of(part, waiting)
                waiting, count = [], 0
        else:
            offset = span.end
        yield from self._of(part, waiting)
        return offset

    def _of(self, part: Part, offsets: list[Any]) -> Iterator[Any]:
        """Read the rows at these offsets, which the filter has selected."""
        if not offsets:
            return
        wanted = np.concatenate(offsets)
        view = HostedLog(part.log).view
        chunks = read_kept(view, wanted, int(wanted[-1]) + 1, self._in_log(self._columns))
        self._check_uncut(part, int(wanted[-1]) + 1)
        for chunk in chunks:
            yield from self._selected(part, chunk, self._columns)

    def _check_uncut(self, part: Part, offset: int) -> None:
        """Raise `OffsetOutOfRangeError` if records below `offset` may have been cut since the scan began.

        Rows from before and after a truncation would be mixed. An iterator over chunks checks this by itself.
        """
        view = HostedLog(part.log).view
        if view.may_have_cut(offset, part.version):
            raise out_of_range(offset, view.log_start_offset, view.log_end_offset)

    def _in_one_step(self, part: Part, span: Span) -> Any:
        """Read all columns together; return the offset to continue at, after a chunk with few selected rows."""
        for chunk in self._chunks(part, span, self._columns):
            rows = 0
            for batch in self._selected(part, chunk, self._columns):
                rows = batch.num_rows
                yield batch
            if rows < MANY * len(chunk) / 4:
                return chunk.next_offset
        return span.end

    def _chunks(self, part: Part, span: Span, names: Sequence[str], *, with_offsets: bool = False) -> Iterator[Columns]:
        if span.start >= span.end:
            return
        self._check_uncut(part, span.start)
        by_time, offset = "timestamp" in self._tested, span.start
        most = self._table.options.max_lateness
        late = None if most is None else LatenessCheck(f"{part.topic}-{part.number}", most, MAX_LATENESS)
        known = self._table.source.known_times(part.log)
        version = known.version(part.log)
        for chunk in self._pieces(part, span, names, self._in_log(names, with_offsets=with_offsets or by_time)):
            if by_time:
                if late is not None:
                    late.see(chunk)
                if known.version(part.log) == version:
                    known.note(version, offset, chunk)
            offset = chunk.next_offset
            yield chunk

    def _pieces(self, part: Part, span: Span, names: Sequence[str], in_log: tuple[str, ...]) -> Iterator[Columns]:
        """Read columns of the log for these of the table."""

        def pieces(start: int, most_bytes: int | None) -> Iterator[Columns]:
            return part.log.iter_columns(
                start,
                end_offset=span.end,
                columns=in_log,
                max_bytes=most_bytes,
                isolation=self._table.options.isolation,
                threads=1 if span.end - span.start <= FEW_OFFSETS else self._table.options.threads,
            )

        if not self._decodes(names):
            yield from pieces(span.start, CHUNK_BYTES if span.end - span.start <= FEW_OFFSETS else None)
            return
        # A limit is often reached by the first piece, which is small. Larger ones are decoded by several threads.
        for first in pieces(span.start, None):
            yield first
            self._check_uncut(part, first.next_offset)
            yield from pieces(first.next_offset, DECODED_BYTES)
            return

    def _decodes(self, names: Sequence[str]) -> bool:
        """Return whether some of these columns are decoded from values."""
        decoding = self._table.decoding
        return decoding is not None and any(name in decoding.names for name in names)

    def _in_log(self, names: Sequence[str], *, with_offsets: bool = False) -> tuple[str, ...]:
        """Return the columns to read of the log for these of the table; at least one, to know the number of rows."""
        needed = {name for name in names if name in IN_LOG}
        if self._decodes(names):
            needed |= {"value", "offset"}  # an error names the offset
        if with_offsets or not needed:
            needed.add("offset")
        return tuple(name for name in IN_LOG if name in needed)

    def _batch(self, part: Part, chunk: Columns, names: Sequence[str]) -> Any:
        """Return columns of the table as a record batch."""
        pa, schema = self._pa, self._schema_of(names)
        read = pa.record_batch(chunk)
        decoded = {}
        if self._table.decoding is not None and "value" in read.schema.names:
            place = f"{part.topic}-{part.number}"
            decoded = self._table.decoding.columns(
                read.column("value"), names, lambda row: f"{place}, offset {chunk.offsets[row]}"
            )
        arrays = []
        for name in names:
            if name in decoded:
                arrays.append(decoded[name])
            elif name in IN_NAMES:
                arrays.append(self._in_name(part, len(chunk), [name]).column(0))
            elif name == "timestamp":
                arrays.append(read.column("timestamp").view(schema.field("timestamp").type))
            else:
                arrays.append(read.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _selected(self, part: Part, chunk: Columns, names: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of a chunk that the filter selects, with the wanted columns, unless there is none."""
        if not len(chunk):
            return
        batch = self._batch(part, chunk, names)
        mask = self._mask(batch)
        wanted = batch.select(list(self._names))
        if mask is not None:
            wanted = wanted.filter(mask)
        if wanted.num_rows:
            yield wanted

    def _mask(self, batch: Any) -> Any:
        """Return which rows the filter selects; None if it selects all."""
        if self._filter is None:
            return None
        mask = self._filter.mask(batch.select(list(self._tested)) if self._tested else batch)
        return None if mask.true_count == len(mask) else mask.fill_null(False)

    # The table view.

    def _latest(self) -> Iterator[Any]:
        options, source = self._table.options, self._table.source
        for topic in source.topics():
            for number, chunk in source.latest(topic, options.as_of):
                if self._only in (None, (topic, number)):
                    part = Part(topic, number, source.log(topic, number), ())
                    yield from self._selected(part, chunk, self._columns)


def record_counts(log: Log, span: Span, isolation: Isolation) -> Iterator[int]:
    """Yield numbers of records, whose sum is the number of records in `span`: most from the headers of batches."""
    start, end = span
    while start < end:
        stop = min(start + COUNTED_OFFSETS, end)
        table = log.batch_table(start, end_offset=stop, isolation=isolation)
        base, last = table["base_offset"], table["last_offset"]
        whole = (base >= start) & (last < stop) & (table["magic"] == 2)
        if whole.all():
            yield int(table["count"][~table["is_control"]].sum())
        else:
            # A batch of an old format is counted by its records, and so is one that reaches beyond the range.
            first = int(np.argmin(whole))
            yield int(table["count"][:first][~table["is_control"][:first]].sum())
            begin = int(last[first - 1]) + 1 if first else start
            stop = min(max(int(last[first]) + 1, begin + 1), end) if table["magic"][first] == 2 else stop
            for chunk in log.iter_columns(begin, end_offset=stop, columns=("offset",), isolation=isolation, threads=1):
                yield len(chunk)
        start = stop
