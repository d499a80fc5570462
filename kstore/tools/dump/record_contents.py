"""Converts keys, values and control records to text and JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from kstore.codec.coordinator.record_texts import Coordinator, control_json, control_text
from kstore.errors import CorruptRecordError, InvalidRecordError, KStoreError
from kstore.tools.dump._dump import LogText, java_text
from kstore.tools.dump.dump_options import Decode
from kstore.tools.dump.dump_ranges import Report

__all__ = ["Contents", "json_line", "json_members", "octets", "reason_of"]


def octets(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return bytes as a JSON member: text if they are UTF-8, otherwise base64 with `_base64` after the name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _number(name: str, text: bytes | None) -> dict[str, Any]:
    return {f"decoded_{name}": None if text is None else int(text)}


def json_line(members: dict[str, Any]) -> bytes:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def json_members(members: dict[str, Any]) -> bytes:
    return json_line(members)[1:-2]


def reason_of(error: KStoreError) -> str:
    """Return the reason of an error, without the path and position."""
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


class Contents:
    """Converts keys, values and control records to text or JSON.

    With `report`, data that cannot be decoded is reported and printed as it is; otherwise the error is raised.
    """

    def __init__(
        self, decode: Decode | None, path: str, report: Report | None = None, numbers: Sequence[bool] = (False, False)
    ) -> None:
        self.decode = decode
        self.text: LogText | None = None
        self._numbers = numbers
        self._path = path
        self._report = report

    def _complain(self, error: KStoreError) -> None:
        if self._report is None:
            raise error
        self._report(self._path, None if self.text is None else self.text.position, reason_of(error))

    def control_text(self, key: bytes | None, value: bytes | None) -> bytes:
        try:
            return control_text(key, value)
        except CorruptRecordError as error:
            self._complain(error)
            return b""

    def control_json(self, key: bytes | None, value: bytes | None) -> bytes:
        try:
            return control_json(key, value)
        except CorruptRecordError as error:
            self._complain(error)
            return b"null"

    def texts(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        if self.decode is not None:
            try:
                return self.decode(offset, key, value)
            except InvalidRecordError as error:
                self._complain(error)
        return None if key is None else java_text(key), None if value is None else java_text(value)

    def members(self, offset: int, key: bytes | None, value: bytes | None) -> bytes:
        """Return the JSON members for a record's key and value."""
        stored: dict[str, Any] = {**octets("key", key), **octets("value", value)}
        if self.decode is None:
            return json_members(stored)
        try:
            key_text, value_text = self.decode(offset, key, value)
        except InvalidRecordError as error:
            self._complain(error)
            return json_members(stored)
        if not isinstance(self.decode, Coordinator):
            return json_members(
                (_number("key", key_text) if self._numbers[0] else octets("key", key))
                | (_number("value", value_text) if self._numbers[1] else octets("value", value))
            )
        if value_text is None:
            return json_members({"decode_error": (key_text or b"").decode(), **stored})
        decoded = b"null" if value_text == b"<DELETE>" else value_text
        return b'"decoded_key":%b,"decoded_value":%b' % (key_text or b"null", decoded)
