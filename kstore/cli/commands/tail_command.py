"""`kstore tail`: prints the last records of a partition or a topic, and optionally new ones as they are appended."""

from __future__ import annotations

from kstore.cli import command_options
from kstore.cli.commands import cat_command

__all__ = ["run"]

_ABOUT = """\
Print the last records of each partition, ten by default, and with --follow new ones as they are appended. A store or a
broker may be writing to the directory."""
_EXAMPLES = """examples:
  kstore tail data/events-0
  kstore tail -f data/events --last 0 --format '%p %o %s\\n'
  kstore tail -f data/events-0 --from -1h --timeout 60
"""


def run(arguments: list[str]) -> int:
    parser = cat_command.parser("tail", _ABOUT, _EXAMPLES, last=10)
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more records")
    parser.add_argument(
        "--timeout", type=command_options.seconds, metavar="SECONDS", help="end after this time without a new record"
    )
    parsed = parser.parse_args(arguments)
    return cat_command.show(parsed, follow=parsed.follow, timeout=parsed.timeout)
