"""Escapes characters that could control a terminal: control characters, and marks that change the text's direction.

Invariant: text without such characters is not changed, so escaped text is not escaped again.
"""

from __future__ import annotations

import logging
import re

__all__ = ["escaped", "guard_messages"]

# C0 and C1 controls and DEL; line and paragraph separators; Unicode's Bidi_Control, which changes the direction of
# text; lone surrogates, which represent bytes of a file name that are not UTF-8 and cannot be written.
_RISKY = "\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE = re.compile(f"[{_RISKY}]")
_IN_TEXT = re.compile(f"(?![\t\n])[{_RISKY}]")


def escaped(text: str, *, lines: bool = False) -> str:
    r"""Escape the risky characters of a text: those below 0x20 and single bytes as `\x1b`, others as `\u009b`.

    With `lines`, line feeds and tabs are kept.
    """
    return (_IN_TEXT if lines else _IN_LINE).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that Python's surrogate represents
        return f"\\x{code:02x}"
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"  # JSON can read the second form


class _OneLine(logging.Filter):
    """Makes each message one line without risky characters; a message without any keeps its arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the record's message if needed; let every record pass."""
        try:
            text = record.getMessage()
        except Exception:  # the handler reports it
            return True
        if _IN_LINE.search(text):
            record.msg, record.args = escaped(text), ()
        if record.exc_info and not record.exc_text:  # the text that handlers print
            trace = logging.Formatter().formatException(record.exc_info)
            if _IN_TEXT.search(trace):
                record.exc_text = escaped(trace, lines=True)
        return True


def guard_messages() -> None:
    """Escape the messages of kstore's loggers before any handler gets them. Idempotent."""
    for name in ("kstore", "kstore.future"):
        logger = logging.getLogger(name)
        if not any(isinstance(installed, _OneLine) for installed in logger.filters):
            logger.addFilter(_OneLine())
