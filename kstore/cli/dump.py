"""`kstore dump`: the options of Kafka's dump tool, taken apart as it takes them apart (DUMP.md 1 and 11).

An option may have one dash or two, its name is never shortened, a word that is no option is ignored, and an option with
a value is given once. `-h` is ours; `--help`, as in Kafka's tool, goes to standard error and exits with 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from kstore.dump import Dump, DumpOptions
from kstore.errors import ConfigError

__all__ = ["run"]

KAFKA_VERSION = "4.3.0"
"""The release whose dump tool this is line by line."""

_ABOUT = "Print log segments, indexes and snapshots as text: the same text, line by line, as Kafka's dump tool."
_EXAMPLES = """examples:
  kstore dump --files data/events-0/00000000000000000000.log
  kstore dump --print-data-log --files data/events-0/00000000000000000000.log
  kstore dump --files data/events-0/00000000000000000000.index,data/events-0/00000000000000000000.timeindex
  kstore dump --offsets-decoder --files data/__consumer_offsets-12/00000000000000000000.log
"""
_DECODERS = {
    "offsets": ("offsets-decoder", "records of __consumer_offsets"),
    "transaction": ("transaction-log-decoder", "records of __transaction_state"),
    "cluster-metadata": ("cluster-metadata-decoder", "not here: records of __cluster_metadata"),
    "remote-log-metadata": ("remote-log-metadata-decoder", "not here: records of __remote_log_metadata"),
    "share-group": ("share-group-state-decoder", "records of __share_group_state"),
}
_HINTS = {
    "offset-position": "Kafka's tool has no such option; every batch line tells its position, and a dump of the"
    " .index file prints offset and position of each entry",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Once(argparse.Action):
    """An option that is given once, since it has one value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[str] | None,
        option_string: str | None = None,
    ) -> None:
        if self.dest in namespace.given:
            name = (option_string or self.dest).lstrip("-")
            raise ConfigError(f"Found multiple arguments for option {name}, but you asked for only one")
        namespace.given.add(self.dest)
        setattr(namespace, self.dest, values)


def _parser() -> _Parser:
    parser = _Parser(
        prog="kstore dump",
        usage="kstore dump --files FILE[,FILE...] [options]",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    defaults = DumpOptions()
    parser.set_defaults(given=set())

    def value(name: str, what: str, default: str | None = None, **more: object) -> None:
        parser.add_argument(f"--{name}", action=_Once, default=default, help=what, **more)  # type: ignore[arg-type]

    def flag(name: str, what: str) -> None:
        parser.add_argument(f"--{name}", action="store_true", help=what)

    value("files", "files to dump, separated by commas (required)", metavar="FILES")
    flag("print-data-log", "print keys and values, too; implies --deep-iteration")
    flag("deep-iteration", "print a line for each record under its batch's line")
    flag("skip-record-metadata", "leave out of these lines what is not key or value, and control records' text")
    value("max-bytes", "look only at the first N bytes of each log", defaults.max_bytes, metavar="N")
    value(
        "max-message-size",
        "bytes that a batch may have where an .index entry points (default: %(default)s)",
        defaults.max_message_size,
        metavar="N",
    )
    flag("verify-index-only", "check .index and .timeindex entries without printing them")
    flag("index-sanity-check", "do only the check of index files that a broker does when it starts")
    value(
        "key-decoder-class",
        "decoder of keys: StringDecoder, IntegerDecoder or LongDecoder of"
        " org.apache.kafka.tools.api; implies --print-data-log",
        metavar="CLASS",
        nargs="?",
    )
    value("value-decoder-class", "decoder of values, likewise", metavar="CLASS", nargs="?")
    for name, what in _DECODERS.values():
        flag(name, what)
    flag("help", "print this to standard error, exit code 1 (as Kafka's tool); -h: to standard output")
    flag("version", f"print {KAFKA_VERSION}, the version of Kafka whose tool this is")
    return parser


def _split(arguments: Sequence[str], parser: _Parser) -> list[str]:
    """Give every known option two dashes, refuse unknown ones, and drop the words that are none."""
    kept: list[str] = []
    known = {name.lstrip("-"): action for action in parser._actions for name in action.option_strings}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            continue
        name, equals, _ = word.lstrip("-").partition("=")
        action = known.get(name)
        if action is None:
            hint = f": {_HINTS[name]}" if name in _HINTS else ""
            raise ConfigError(f"{name} is not a recognized option{hint}")
        if equals or action.nargs == 0:
            kept.append(f"--{word.lstrip('-')}")
        elif action.nargs == "?":
            has_value = words and not words[0].startswith("-")
            kept.append(f"--{name}={words.pop(0)}" if has_value else f"--{name}")
        elif words:
            kept.append(f"--{name}={words.pop(0)}")
        else:
            raise ConfigError(f"Option {name} requires an argument")
    return kept


def run(arguments: Sequence[str]) -> int:
    """Dump what is asked for; 0 even when the tool has found something to complain about, as Kafka's."""
    parser = _parser()
    if "-h" in arguments:
        parser.print_help()
        return 0
    given = parser.parse_args(_split(arguments, parser))
    if not arguments or given.help:
        parser.print_help(sys.stderr)
        return 1
    if given.version:
        print(KAFKA_VERSION)
        return 0
    if given.files is None:
        print('Missing required argument "[files]"', file=sys.stderr)
        parser.print_help(sys.stderr)
        return 1
    dump = Dump(_options(given), sys.stdout.buffer, sys.stderr.write)
    dump.run(re.sub(",+$", "", given.files).split(","))
    return 0


def _options(given: argparse.Namespace) -> DumpOptions:
    defaults = DumpOptions()
    decoder = next((name for name, (option, _) in _DECODERS.items() if getattr(given, option.replace("-", "_"))), None)
    contents = (
        given.print_data_log or decoder is not None or bool({"key_decoder_class", "value_decoder_class"} & given.given)
    )
    return DumpOptions(
        deep=given.deep_iteration or contents,
        contents=contents,
        metadata=not given.skip_record_metadata,
        verify_index_only=given.verify_index_only,
        index_sanity_check=given.index_sanity_check,
        max_bytes=given.max_bytes,
        max_message_size=given.max_message_size,
        decoder=decoder,
        key_decoder=given.key_decoder_class or defaults.key_decoder,
        value_decoder=given.value_decoder_class or defaults.value_decoder,
    )
