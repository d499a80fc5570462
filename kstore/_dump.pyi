"""The lines of the dump tool: from a log's batches to text."""

import os
from collections.abc import Callable
from typing import TypeAlias, final

from typing_extensions import Buffer

_Text: TypeAlias = bytes | None

def java_text(data: bytes) -> bytes: ...

@final
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
    ) -> None: ...
    @property
    def gaps(self) -> dict[int, int]: ...
    @property
    def stop(self) -> str: ...
    @property
    def needed(self) -> int: ...
    def feed(self, data: Buffer, size: int, position: int, end: int) -> int: ...
    def short_batch(self, header: Buffer, position: int, size: int) -> None: ...
    def put(self, text: bytes) -> None: ...
    def follow(self, offset: int) -> None: ...
    def flush(self) -> None: ...
