"""The options of a dump as they were typed, and their values: numbers as Java parses them, decoders of contents."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kstore.base.numbers import INT_MAX
from kstore.codec.coordinator.record_texts import OFFSETS, SHARE_GROUPS, TRANSACTIONS
from kstore.errors import ConfigError, InvalidRecordError
from kstore.tools.dump._dump import java_text

__all__ = ["Decode", "DumpOptions", "base_offset_of", "decoder_of", "int_option"]

Decode = Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]]
"""Returns a record's key and value as text; the offset is for error messages."""

_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_CLASSES = "org.apache.kafka.tools.api."


@dataclass(frozen=True)
class DumpOptions:
    """The options of the command line; numbers are text as typed, since Kafka's tool parses them late.

    `decoder` is "offsets", "transaction", "share-group" or another of Kafka's; None means the two classes below.
    """

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: str = str(INT_MAX)
    max_message_size: str = "5242880"
    decoder: str | None = None
    key_decoder: str = _CLASSES + "StringDecoder"
    value_decoder: str = _CLASSES + "StringDecoder"

    @property
    def lines(self) -> dict[str, bool]:
        """The arguments of `LogText` that say what is printed."""
        return {"deep": self.deep, "contents": self.contents, "metadata": self.metadata}


def _number(text: str, bits: int) -> int | None:
    """Parse a number as Java does: without underscores and blanks."""
    value = int(text) if _NUMBER.fullmatch(text) and len(text) < 1000 else None
    return value if value is not None and -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def int_option(name: str, text: str) -> int:
    """Return the number in an option; raise `ConfigError` for text that Java does not parse as a number."""
    value = _number(text, 32)
    if value is None:
        raise ConfigError(f"Cannot parse argument '{text}' of option {name}: a number of 32 bits is wanted")
    return value


def base_offset_of(name: str) -> int:
    """Return the base offset in a file's name; raise `ConfigError` for a name without one, as in Java."""
    text = name.partition(".")[0]
    value = _number(text, 64)
    if value is None:
        raise ConfigError(f"{name}: the name of such a file begins with its base offset, and {text!r} is no number")
    return value


def _integer_decoder(size: int) -> Callable[[bytes], bytes]:
    def decode(data: bytes) -> bytes:
        if len(data) < size:
            raise InvalidRecordError(f"{len(data)} bytes for a number of {size}")
        return str(int.from_bytes(data[:size], "big", signed=True)).encode()

    return decode


_COORDINATORS: dict[str, Decode] = {"offsets": OFFSETS, "transaction": TRANSACTIONS, "share-group": SHARE_GROUPS}
_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    _CLASSES + "StringDecoder": java_text,
    _CLASSES + "IntegerDecoder": _integer_decoder(4),
    _CLASSES + "LongDecoder": _integer_decoder(8),
}


def decoder_of(options: DumpOptions) -> Decode | None:
    """Return the decoder of keys and values; None if they are text already."""
    if options.decoder in _COORDINATORS:
        return _COORDINATORS[options.decoder]
    if options.decoder is not None:
        raise ConfigError(
            f"records of the {options.decoder} topic are not decoded here: kstore knows __consumer_offsets, "
            "__transaction_state and __share_group_state"
        )
    decoders = []
    for name in (options.key_decoder, options.value_decoder):
        if name not in _DECODERS:
            raise ConfigError(f"Failed to load decoder class {name}: there are {', '.join(_DECODERS)}")
        decoders.append(_DECODERS[name])
    key_decoder, value_decoder = decoders
    if key_decoder is value_decoder is java_text:
        return None

    def decode(_: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        return None if key is None else key_decoder(key), None if value is None else value_decoder(value)

    return decode
