"""The files that a segment has opened, and the search by time in them."""

from typing_extensions import disjoint_base

from kstore.files.indexfile import OffsetIndex, TimeIndex
from kstore.files.logfile import LogFile

@disjoint_base
class Opened:
    """The part of a `Segment` that compiled searches use. Looking up is safe from any thread."""

    base_offset: int
    _file: LogFile | None
    _size: int | None
    _time_index: TimeIndex | None
    _offset_index: OffsetIndex | None
    _used: bool
