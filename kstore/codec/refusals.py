"""Messages for refused records: one wording for each rule, for all ways to append.

`ks_too_far` in `c/record.h` decides whether a timestamp is refused.
"""

from __future__ import annotations

from kstore.base.numbers import LONG_MAX

NO_KEY = "a compacted topic needs a key in every record, and this one has none"
CLAIMS_APPEND_TIME = "timestamp type LogAppendTime: only a broker stamps it"


def no_timestamp(timestamp: object) -> str:
    """Return the message for a number that is not a timestamp."""
    return f"timestamp {timestamp} is not within -1 to {LONG_MAX}; -1 means none, else milliseconds from 0 on"


def too_far(timestamp: int, now_ms: int, before_max_ms: int, after_max_ms: int) -> str:
    """Return the message for a timestamp that is further from now than the topic's settings allow."""
    if timestamp < now_ms:
        return (
            f"timestamp {timestamp} is {now_ms - timestamp} ms before now ({now_ms}); "
            f"message.timestamp.before.max.ms allows {before_max_ms}"
        )
    return (
        f"timestamp {timestamp} is {timestamp - now_ms} ms after now ({now_ms}); "
        f"message.timestamp.after.max.ms allows {after_max_ms}"
    )


def way_to_bytes(value: object) -> str:
    """Return a hint how to encode a value of a common type, for the end of a message; "" for other types."""
    for kind in type(value).__mro__:
        if way := _WAYS_TO_BYTES.get(f"{kind.__module__}.{kind.__qualname__}"):
            return f": encode it first, as in {way}"
    return ""


_WAYS_TO_BYTES = {
    "builtins.int": "str(number).encode()",
    "builtins.float": "str(number).encode()",
    "decimal.Decimal": "str(number).encode()",
    "fractions.Fraction": "str(number).encode()",
    "datetime.date": "time.isoformat().encode()",
    "datetime.time": "time.isoformat().encode()",
    "datetime.timedelta": "str(time).encode()",
    "uuid.UUID": "uuid.bytes, or str(uuid).encode()",
    "builtins.dict": "json.dumps(value).encode()",
    "builtins.list": "json.dumps(value).encode()",
    "builtins.tuple": "json.dumps(value).encode()",
    "pathlib.PurePath": "os.fsencode(path)",
}
