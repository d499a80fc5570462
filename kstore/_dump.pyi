"""The lines of the dump tool: from a log's batches to text or JSON."""

import os
from collections.abc import Callable
from typing import TypeAlias, final

from typing_extensions import Buffer, disjoint_base

_Text: TypeAlias = bytes | None

def java_text(data: bytes) -> bytes: ...

@disjoint_base
class LogText:
    def __init__(
        self,
        write: Callable[[memoryview], object],
        *,
        path: str | os.PathLike[str] | None,
        control: Callable[[bytes | None, bytes | None], bytes],
        decode: Callable[[int, bytes | None, bytes | None], tuple[_Text, _Text]] | None = None,
        deep: bool = False,
        contents: bool = False,
        metadata: bool = True,
        tolerant: bool = False,
    ) -> None: ...
    @property
    def gaps(self) -> dict[int, int]: ...
    @property
    def stop(self) -> str: ...
    @property
    def disorder(self) -> list[tuple[int, int, int, int]]: ...
    @property
    def needed(self) -> int: ...
    @property
    def position(self) -> int: ...
    last_offset: int
    def feed(self, data: Buffer, size: int, position: int, end: int) -> int: ...
    def short_batch(self, header: Buffer, position: int, size: int) -> None: ...
    def print_batch(self, data: Buffer, position: int) -> None: ...
    def between(self, start_offset: int, end_offset: int) -> None: ...
    def settle(self) -> None: ...
    def put(self, text: bytes) -> None: ...
    def follow(self, offset: int) -> None: ...
    def flush(self) -> None: ...

@final
class LogJson(LogText):
    def __init__(
        self,
        write: Callable[[memoryview], object],
        *,
        file: bytes,
        path: str | os.PathLike[str] | None,
        control: Callable[[bytes | None, bytes | None], bytes],
        decode: Callable[[int, bytes | None, bytes | None], bytes] | None = None,
        deep: bool = False,
        contents: bool = False,
        metadata: bool = True,
        tolerant: bool = True,
    ) -> None: ...
