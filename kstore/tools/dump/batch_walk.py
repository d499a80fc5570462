"""Walks over the batches of a log file, for all dumps.

The walk ends at the first damage, as Kafka's tool does, or reports each fault and continues with the next sound batch.
"""

from __future__ import annotations

from collections.abc import Callable

from kstore.codec import header
from kstore.disk import fs
from kstore.errors import CorruptRecordError, InvalidRecordError
from kstore.tools.check import _verify
from kstore.tools.dump._dump import LogJson, LogText
from kstore.tools.dump.dump_options import DumpOptions
from kstore.tools.dump.dump_ranges import Report, Stretch, follow
from kstore.tools.dump.legacy_dump import legacy_json, legacy_text
from kstore.tools.dump.record_contents import Contents, reason_of

__all__ = ["LogWalk"]

_CHUNK_BYTES = 1 << 20
_BAD_CRC = "the CRC of the batch does not hold"


class LogWalk:
    """Prints the batches in `stretch`, a part of one log file.

    With `report`, damage is reported and skipped. Without it, `stretch` is the whole file, an error in a batch is
    raised, and the walk ends at the end of the batches. Not thread-safe.
    """

    def __init__(
        self,
        fd: int,
        text: LogText,
        path: str,
        stretch: Stretch,
        contents: Contents,
        options: DumpOptions,
        *,
        report: Report | None = None,
        reach: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._fd = fd
        self._options = options
        self._tell = report
        self._reach = reach
        self._text = text
        self._path = path
        self._stretch = stretch
        self._contents = contents
        self._has_legacy = False
        self._is_cut = False  # the caller's limit ends the walk, so a batch that crosses it is no damage
        self._end = 0

    def run(self, max_bytes: int) -> tuple[int, int]:
        """Print the part of the stretch that is within the first `max_bytes` of the file.

        Returns the file's size, and the number of bytes of the stretch after its last batch.
        """
        size = fs.size(self._fd)
        self._end = end = min(size if self._stretch.end is None else self._stretch.end, max_bytes, size)
        self._is_cut = end == max_bytes
        text, position, before = self._text, self._stretch.start, -1
        buffer = bytearray(min(_CHUNK_BYTES, max(end - position, 0)))
        while position < end and position != before:
            before = position
            filled = fs.pread_into(self._fd, memoryview(buffer)[: end - position], position)
            with memoryview(buffer)[:filled] as view:
                position, is_over = self._chunk(view, position)
            if is_over:
                break
            self._reach(position)
            if text.stop == "more" and text.needed > len(buffer):
                buffer = bytearray(text.needed)
                before = -1  # continue; if the file has become shorter, the next round ends the walk
        return size, end - position

    def _chunk(self, view: memoryview, position: int) -> tuple[int, bool]:
        """Print the batches in a piece of the file; return where to continue, and whether the walk is over."""
        text, start = self._text, position
        while position - start < len(view):
            rest = view[position - start :]
            try:
                position += text.feed(rest, len(rest), position, self._end)
            except (CorruptRecordError, InvalidRecordError) as error:
                position = self._faulty(error)
                continue
            finally:
                self._disorder()
            if text.stop == "more":
                return position, False
            next_position = self._stopped(view[position - start : position - start + text.needed], position)
            if next_position < 0:
                return position, True
            position = next_position
        return position, False

    def _stopped(self, batch: memoryview, position: int) -> int:
        """Handle the `batch` at which `feed` stopped; return where to continue, or -1."""
        stop = self._text.stop
        if stop == "legacy":
            return self._legacy(batch, position)
        if stop == "short":
            self._text.short_batch(fs.pread(self._fd, header.HEADER_BYTES, position), position, len(batch))
            return position + len(batch)
        if stop == "unsound":
            return self._unsound(batch, position)
        if stop == "lost":
            return self._lost(position, "no batch can be here: its size is too small")
        if self._tell is None or position == self._end or self._is_cut:
            return -1
        return self._lost(position, "the file ends inside a batch")

    def _faulty(self, error: CorruptRecordError | InvalidRecordError) -> int:
        """Report an error of the last batch that was read; return where the next one starts."""
        if self._tell is None:
            raise error
        text = self._text
        text.settle()
        self._report(text.position, reason_of(error))
        return text.position + text.needed

    def _report(self, position: int, what: str) -> None:
        if self._tell is not None:
            self._tell(self._path, position, what)

    def _disorder(self) -> None:
        for position, base, last, before in self._text.disorder:
            self._report(position, f"a batch of offsets {base} to {last} behind offset {before}")
        self._text.disorder.clear()

    def _lost(self, position: int, what: str) -> int:
        """Report bytes that are no sound batch; return where sound batches continue, or -1."""
        end = self._end
        next_position = follow(
            self._fd, position + 1, end, self._stretch.files, self._text.last_offset + 1, self._path,
            legacy=self._has_legacy,
        )  # fmt: skip
        is_last = next_position < 0
        size = (end if is_last else next_position) - position
        behind = "nothing sound comes behind them" if is_last else f"sound batches go on at position {next_position}"
        self._report(position, f"{what}; {size} bytes, {behind}")
        return next_position

    def _has_true_size(self, position: int, size: int) -> bool:
        """Return whether an unsound batch ends where its header says: another starts there, or the file ends."""
        if position + size == self._end:
            return True
        data, _, _ = _verify.walk(self._fd, position + size, self._end, rows=1, records=False, path=self._path)
        return bool(data)

    def _unsound(self, batch: memoryview, position: int) -> int:
        """Print an unsound batch if the bytes look like one; return where to continue."""
        magic = header.MAGIC.of(batch)
        what = _BAD_CRC if magic == 2 else f"a batch of format {magic}, which is not known"
        if len(batch) < header.HEADER_BYTES:
            return self._lost(position, f"no batch can be here: {len(batch)} bytes are no whole header")
        if not self._has_true_size(position, len(batch)):
            return self._lost(position, what)
        return self._doubtful(batch, position, what)

    def _doubtful(self, batch: memoryview, position: int, what: str) -> int:
        self._report(position, what)
        try:
            self._text.print_batch(batch, position)
        except (CorruptRecordError, InvalidRecordError) as error:
            self._faulty(error)
        return position + len(batch)

    def _legacy(self, batch: memoryview, position: int) -> int:
        """Print an entry of format 0 or 1; return where to continue."""
        data, size = bytes(batch), len(batch)
        if self._tell is not None:
            offset = header.BASE_OFFSET.of(data)
            if not header.legacy_crc_holds(data):
                if size >= header.HEADER_BYTES and header.crc_holds(data):
                    magic = header.MAGIC.of(data)
                    return self._doubtful(batch, position, f"a batch of format {magic} whose CRC holds in format 2")
                if not self._has_true_size(position, size):
                    return self._lost(position, _BAD_CRC)
                self._report(position, _BAD_CRC)
            else:
                text = self._text
                if offset <= text.last_offset:
                    self._report(position, f"a batch that ends with offset {offset} behind offset {text.last_offset}")
                text.last_offset = offset
                self._has_legacy = True
                if offset < self._stretch.start_offset:
                    return position + size
        options, contents = self._options, self._contents
        try:
            if isinstance(self._text, LogJson):
                legacy_json(data, position, self._text, self._path, options, contents, self._wants)
            else:
                legacy_text(data, position, self._text, self._path, options, contents.texts, self._wants)
        except (CorruptRecordError, InvalidRecordError) as error:
            self._faulty(error)
        return position + size

    def _wants(self, offset: int) -> bool:
        return self._tell is None or self._stretch.start_offset <= offset < self._stretch.end_offset
