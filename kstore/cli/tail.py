"""`kstore tail`: the last records of a partition or a topic, and those to come."""

from __future__ import annotations

from kstore.cli import cat

__all__ = ["run"]

_ABOUT = """\
Print the last records of each partition, ten unless told otherwise; with --follow, go on as more are appended. The
directory may be written by a store or a broker meanwhile."""
_EXAMPLES = """examples:
  kstore tail data/events-0
  kstore tail -f data/events --last 0 --format '%p %o %s\\n'
  kstore tail -f data/events-0 --from -1h --timeout 60
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and give its exit code."""
    taken = cat.parser("kstore tail", _ABOUT, _EXAMPLES, last=10)
    taken.add_argument("-f", "--follow", action="store_true", help="wait for more")
    taken.add_argument("--timeout", type=float, metavar="SECONDS", help="end when nothing has come for so long")
    asked = taken.parse_args(arguments)
    return cat.show(asked, follow=asked.follow, timeout=asked.timeout)
