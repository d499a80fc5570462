"""`ColumnSource`: feeds the compiled `Reader` of columns with parts of segment files.

The version of the log's guard changes when records are removed or files replaced. `ColumnSource` accepts a part only if
the version is the same after the read. If it has changed, or a batch was unsound, `recheck` is called before reading
continues, as by an iterator over records. Rows that were accepted before are kept.
"""

from __future__ import annotations

from contextlib import suppress

from kstore._core import ReaderPosition
from kstore.codec._aborted import AbortedFilter
from kstore.columns import _batch_table, _column_reader
from kstore.columns._columns import Columns
from kstore.disk import fs
from kstore.errors import CorruptRecordError, KStoreError
from kstore.files import _log_search
from kstore.log.reading.log_reader import LogReader
from kstore.log.reading.view import HEADER_BYTES, ReadPiece, SegmentList, chain, misplaced, offset_limit
from kstore.log.segments.segment import Segment

# How much of a file is read between two checks of the guard; less while the guard's version keeps changing.
LEAST_STRIDE_BYTES, MOST_STRIDE_BYTES = 256 << 10, 64 << 20
# For a table of batches: strides in a step, most parts of a step, least bytes of a part (about 1 % of it is headers).
TABLE_STRIDES, TABLE_PARTS, TABLE_PART_BYTES = 32, 16, 4 << 20


class ColumnSource:
    """Reads the records of one pass over a log as `Columns`, chunk by chunk. Not thread-safe."""

    def __init__(self, log_reader: LogReader, reader: _column_reader.Reader | _batch_table.BatchTable) -> None:
        self._view = view = log_reader.view
        self._log_reader = log_reader
        self._end = log_reader.end_offset
        self._reader = reader
        self._seen = view.guard.version
        self._segment: Segment | None = None
        self._position = 0
        self._promised = view.data_end_offset
        self._previous: ReadPiece | None = None
        self._filter: AbortedFilter | None = None  # aborted transactions of the segment
        self._stride = MOST_STRIDE_BYTES
        self._divided = 0  # position up to which the file was divided into chunks
        self._base, self._crc = -1, 0  # base offset and CRC of the batch that the last record came from
        self._fault: KStoreError | None = None
        self.is_done = False
        reader.seek(log_reader.offset, self._end)

    def next(self, most_rows: int, most_bytes: int, *, whole: bool) -> Columns:
        """Build the next chunk, empty at the end. Unless `whole`, return the rows before a fault, and then raise it."""
        if self._fault is not None:
            fault, self._fault, self.is_done = self._fault, None, True
            raise fault
        reader = self._reader
        self._most_bytes = most_bytes
        reader.begin(most_rows, most_bytes)
        try:
            self._fill()
        except KStoreError as fault:
            if whole or reader.rows == 0:
                self.is_done = True
                raise
            self._fault = fault
        if self.is_done:
            return reader.finish(max(reader.next_offset, min(self._end, self._view.log_end_offset)))
        return reader.finish()

    def _fill(self) -> None:
        while True:
            error = None
            self._reader.mark()
            if self._view.guard.version == self._seen:
                try:
                    stop = self._step()
                except fs.MissingFileError as gone:  # the file was renamed in between; `recheck` finds out why
                    error = CorruptRecordError(f"the file has gone: {gone}", path=gone.filename)
                    error.__cause__ = gone
                except CorruptRecordError as fault:
                    error = fault
            moved = self._view.guard.version != self._seen
            if not moved:
                self._accept()
            if moved or error is not None:
                self._ask(error, moved)
            elif stop == "full":
                return
            elif stop == "past":
                self.is_done = True
                return

    def _step(self) -> str:
        """Read a part of the segment, or open the next segment. Return why reading stopped, as `Reader.read` does."""
        view, reader = self._view, self._reader
        if self._segment is None:
            return self._enter(view.segments)
        segment = self._segment
        # The order matters: if another segment follows, this one is sealed, and the size read below is final.
        following = view.segments.after(segment.base_offset)
        end = view.readable_bytes(segment)
        if self._position < end or reader.is_amid:
            most = offset_limit(view, segment)
            pause = min(self._position + self._stride, end)
            if isinstance(reader, _batch_table.BatchTable):
                pause = min(self._position + self._stride * TABLE_STRIDES, end)
                reader.divide(self._borders(segment, self._position, pause))
            elif self._position >= self._divided:
                reader.sample(pause, end, most)
                if reader.chunk_spacing:
                    borders = self._chunk_borders(segment, reader, pause, end)
                    self._divided = borders[-1] if len(borders) > 2 else pause
                    reader.divide(borders)
            stop = reader.read(pause, end, self._bytes_ahead(segment, end) if reader.is_estimating else 0, most)
            if stop == "alone":
                data = None
                if not reader.is_amid:
                    data = self._kept(self._sound(segment, next(self._file.pieces(reader.position, end))[0], end, most))
                stop = reader.read_slowly(data)
            position, header, *_ = reader.last_batch
            if position >= 0:
                piece = ReadPiece(segment, position, header, reader.position, self._file)
                view.check_piece(self._previous, piece)
                if self._log_reader.options.durable:
                    view.check_durable(self._end)
                self._previous = piece
            self._position = reader.position
            return stop
        if following is None:
            view.check_end()
            if reader.least < min(self._promised, self._end) and self._position == view.readable_bytes(segment):
                raise CorruptRecordError(
                    f"the batches end at offset {reader.least}, and those of the log at {self._promised}",
                    path=segment.path,
                    position=self._position,
                )
            return "past"
        self._open_at(following, 0, max(reader.least, following.base_offset))
        self._leave_out(following)
        return "end"

    def _enter(self, segments: SegmentList) -> str:
        """Find and open the segment that holds the next offset; skip to the batch."""
        if not segments.items:
            self._view.check_end()
            return "past"
        offset = self._reader.next_offset
        # If the offset is below the first segment, it is in a gap or was deleted; if it was deleted, `recheck` raises.
        segment = segments.items[max(segments.floor(offset), 0)]
        end = self._view.readable_bytes(segment)
        if offset >= self._view.log_end_offset:
            self._open_at(segment, end, offset)
        else:
            self._open_at(segment, *segment.start(offset, end))
            if self._position < end:
                self._pass_over(segment, offset, end)
        self._leave_out(segment)
        return "end"

    def _pass_over(self, segment: Segment, offset: int, end: int) -> None:
        """Skip to the batch that holds `offset`, reading only headers, if all batches before it are sound."""
        most = offset_limit(self._view, segment)
        least = self._reader.least
        try:
            batch = _log_search.find_batch(
                self._file.fd, self._position, end, offset, least=least, most=most, path=segment.path
            )
        except CorruptRecordError:
            return  # the next read raises the error
        if batch is not None and batch.base_offset <= offset and batch.magic >= 2 and batch.position > self._position:
            self._open_at(segment, batch.position, batch.base_offset)

    def _open_at(self, segment: Segment, position: int, least: int) -> None:
        self._segment, self._position, self._divided = segment, position, 0
        self._file = segment.file  # keeps the descriptor open even if the segment is closed
        self._reader.open(self._file.fd, position, segment.path, segment.base_offset, least, self._file)

    def _leave_out(self, segment: Segment) -> None:
        self._filter = self._log_reader.aborted_in(segment, self._reader.next_offset, self._end)
        self._reader.leave_out(self._filter)

    def _sound(self, segment: Segment, data: memoryview, end: int, most: int) -> memoryview:
        """Return the bytes before the first batch whose offsets do not follow; raise if there are none."""
        at, reader = self._reader.position, self._reader
        piece = ReadPiece(segment, at, bytes(data[:HEADER_BYTES]), at + len(data), self._file)
        sound, _, _ = chain(self._view, piece, data, reader.least)
        if sound == 0:
            raise misplaced(self._view, piece, data, at, reader.least)
        return data[:sound]

    def _kept(self, data: memoryview) -> memoryview:
        """Return the whole batches before the first aborted one; the first batch is not aborted."""
        if self._filter is None:
            return data
        kept = self._filter.kept(data)
        return data[: kept[0][1]] if kept and kept[0][0] == 0 else data

    def _bytes_ahead(self, segment: Segment, end: int) -> int:
        """Estimate how many bytes are left to read; stop counting when they fill the chunk."""
        segments = self._view.segments
        ahead = end - self._position
        for number in range(segments.floor(segment.base_offset) + 1, len(segments.items)):
            following = segments.items[number]
            if following.base_offset >= self._end or ahead >= self._most_bytes:
                break
            ahead += self._view.readable_bytes(following)
        return ahead

    def _borders(self, segment: Segment, position: int, pause: int) -> list[int]:
        """Return positions spread over `[position, pause)`; if the index is right, batches start at these positions."""
        index = segment.offset_index
        parts = min((pause - position) // TABLE_PART_BYTES, TABLE_PARTS, index.entries)
        if parts < 2:
            return []
        with suppress(IndexError):  # the index was cut during the read
            return [index.entry(slot * index.entries // parts)[1] for slot in range(parts)]
        return []

    def _chunk_borders(self, segment: Segment, reader: _column_reader.Reader, pause: int, end: int) -> list[int]:
        """Return the borders of chunks of about equal size; if the index is right, batches start at these positions.

        The first border is the reader's position. The number of chunks is a multiple of the number of threads.
        """
        index, position, spacing = segment.offset_index, reader.position, reader.chunk_spacing
        borders = [position]
        try:
            first, entries = index.entries_below(reader.next_offset), index.entries
            if entries - first < 2 or pause - position <= spacing:
                return []
            size = index.entry(entries - 1)[1] - index.entry(first)[1]
            step = max((entries - first) * spacing // max(size, 1), 1)
            first -= index.entry(first)[1] > position  # the first batch of a file has no entry
            count = min((pause - position) * (entries - first) // max(end - position, 1), entries - first)
            parts = -(-count // step)
            parts += -parts % reader.threads
            while parts >= _column_reader.MAX_BORDERS:
                parts -= reader.threads
                count = parts * step
            for part in range(1, parts + 1):  # the larger chunks come first, as all chunks are read at the same time
                slot = first + part * (count // parts) + min(part, count % parts)
                following = index.entry(slot)[1] if slot < entries else end
                if not borders[-1] < following <= pause:
                    break
                borders.append(following)
        except IndexError:  # the index was cut during the read
            return []
        return borders

    def _accept(self) -> None:
        """Accept the rows of the last step; called if the guard's version has not changed."""
        position, _, base, crc = self._reader.last_batch
        if position >= 0:
            self._base, self._crc = base, crc
            self._stride = min(2 * self._stride, MOST_STRIDE_BYTES)

    def _ask(self, error: CorruptRecordError | None, moved: bool) -> None:
        """Call `recheck` with the position after the last accepted record. Raise, or continue with the present log."""
        reader = self._reader
        if moved:
            reader.back()
            self._stride = max(self._stride // 8, LEAST_STRIDE_BYTES)
        seen, self._seen = self._seen, self._view.guard.version
        position = ReaderPosition(reader.next_offset, seen, self._base, self._crc)
        following = self._log_reader.recheck(position, error)
        if following is not None:
            self._log_reader = following
            self._promised = min(self._promised, self._view.data_end_offset)
        reader.seek(reader.next_offset, self._end)
        self._segment = self._previous = None
