"""`kstore dump`: parses the options of Kafka's dump tool as that tool does (DUMP 1 and 11), and kstore's own.

An option may have one dash or two. Its name cannot be abbreviated, and an option with a value may be given only once. A
word that is no option is ignored. `--help` prints to standard error and exits with 1, as in Kafka's tool. `-h` is
kstore's. Without `--files`, words are paths. With paths, or with an option that Kafka's tool does not have, the dump
continues after damage, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, command_times, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.progress import Progress
from kstore.disk import fs
from kstore.errors import ConfigError, InvalidTopicError, KStoreError
from kstore.files import names
from kstore.tools.dump.dump_options import DumpOptions
from kstore.tools.dump.dump_ranges import PartitionFiles, Span, partition_files
from kstore.tools.dump.full_dump import FullDump, Source, file_source
from kstore.tools.dump.kafka_dump import Dump

__all__ = ["run"]

KAFKA_VERSION = "4.3.0"
"""The release of Kafka whose dump tool prints the same lines."""

_ABOUT = """\
Print log segments, indexes and snapshots as text: the same text, line by line, as Kafka's dump tool. With --files alone
this stops where that tool stops, with its exit code. With a PATH (a directory of logs, DIR/TOPIC, DIR/TOPIC-P, a file)
or an option marked +, which are not Kafka's, it continues after damage: with a line on standard error for each damaged
place, and exit code 1."""
_EXAMPLES = """\
With --json each line is an object with its type: batch, or record with --deep-iteration; offset_index_entry,
time_index_entry, aborted_transaction, producer (of a snapshot). Its file, and position of the batch in it, come next. A
key, a value, a header's key and value are text under the name "key" or "value" if they are UTF-8, and otherwise base64
under "key_base64" or "value_base64"; null is null. A decoder's result is under "decoded_key" and "decoded_value".

examples:
  kstore dump --files data/events-0/00000000000000000000.log
  kstore dump --print-data-log --files data/events-0/00000000000000000000.log
  kstore dump --files data/events-0/00000000000000000000.index,data/events-0/00000000000000000000.timeindex
  kstore dump --offsets-decoder --files data/__consumer_offsets-12/00000000000000000000.log
  kstore dump data/events-0 --json --print-data-log --offset 1000 --until-offset 1010
  kstore dump data --deep-iteration --from 2013-06-01T12:00 --until 2013-06-01T12:05
"""
_DECODERS = {
    "offsets": ("offsets-decoder", "records of __consumer_offsets"),
    "transaction": ("transaction-log-decoder", "records of __transaction_state"),
    "cluster-metadata": ("cluster-metadata-decoder", "not here: records of __cluster_metadata"),
    "remote-log-metadata": ("remote-log-metadata-decoder", "not here: records of __remote_log_metadata"),
    "share-group": ("share-group-state-decoder", "records of __share_group_state"),
}
_HINTS = {
    "offset-position": "Kafka's tool has no such option; every batch line has its position, and a dump of the"
    " .index file prints offset and position of each entry",
}


_OURS = {"from_offset", "to_offset", "from_time", "to_time"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


class _Once(argparse.Action):
    """An option that may be given only once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if self.dest in namespace.given:
            name = (option_string or self.dest).lstrip("-")
            raise ConfigError(f"Found multiple arguments for option {name}, but you asked for only one")
        namespace.given.add(self.dest)
        setattr(namespace, self.dest, values)


def _parser() -> _Parser:
    parser = _Parser(
        prog="kstore dump",
        usage="kstore dump --files FILE[,FILE...] [options]\n       kstore dump PATH... [options]",
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

    value("files", "files to dump, separated by commas (required, unless there is a PATH)", metavar="FILES")
    flag("print-data-log", "print keys and values, too; implies --deep-iteration")
    flag("deep-iteration", "print a line for each record under its batch's line")
    flag("skip-record-metadata", "print only key and value in these lines, and no text for control records")
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
    flag("json", "+ print objects, one a line: of batches, or with --deep-iteration of records")
    for names_of, dest, metavar, what in (
        (command_options.OFFSET, "from_offset", "N", "leave out offsets below this one"),
        (command_options.UNTIL_OFFSET, "to_offset", "N", "end before this offset"),
        (
            command_options.FROM,
            "from_time",
            "TIME",
            f"start at the first record at or after a time: {command_times.HELP}",
        ),
        (command_options.UNTIL, "to_time", "TIME", "end before the first record at or after a time"),
    ):
        parser.add_argument(*names_of, action=_Once, dest=dest, metavar=metavar, help=f"+ {what}")
    object_store_options.add_reading(parser, mark="+ ")
    flag("help", "print this to standard error, exit code 1 (as Kafka's tool); -h: to standard output")
    flag("version", f"print {KAFKA_VERSION}, the version of Kafka whose tool this is")
    return parser


def _split(arguments: Sequence[str], parser: _Parser) -> tuple[list[str], list[str]]:
    """Return the options, with two dashes each, and the other words. Raises `ConfigError` for unknown options."""
    kept: list[str] = []
    others: list[str] = []
    known = {name.lstrip("-"): action for action in parser._actions for name in action.option_strings}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            others += words
            break
        if not word.startswith("-") or word == "-":
            others.append(word)
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
    return kept, others


def run(arguments: Sequence[str]) -> int:
    """Run the subcommand and return its exit code.

    If there was damage, the code is 0 with Kafka's options only, as in Kafka's tool, and 1 with kstore's own options.
    """
    parser = _parser()
    if "-h" in arguments:
        parser.print_help()
        return 0
    words_of_options, words = _split(arguments, parser)
    given = parser.parse_args(words_of_options)
    if not arguments or given.help:
        parser.print_help(sys.stderr)
        return 1
    if given.version:
        print(KAFKA_VERSION)
        return 0
    files = [] if given.files is None else _listed(given.files)
    is_ours = bool(given.json or _OURS & given.given or object_store_options.given_to_read(given))
    is_ours = is_ours or (given.files is None and bool(words))
    with mounted_paths.mounted("dump", [*files, *words] if is_ours else files, given) as paths:
        return _run(parser, given, paths, is_ours=is_ours)


def _run(parser: _Parser, given: argparse.Namespace, paths: list[str], *, is_ours: bool) -> int:
    if is_ours:
        return _run_ours(given, paths)
    if given.files is None:
        print('Missing required argument "[files]"', file=sys.stderr)
        parser.print_help(sys.stderr)
        return 1
    dump = Dump(_options(given), sys.stdout.buffer, sys.stderr.write)
    dump.run(paths)
    return 0


def _listed(files: str) -> list[str]:
    return re.sub(",+$", "", files).split(",")


def _run_ours(given: argparse.Namespace, paths: list[str]) -> int:
    """Dump directories, ranges or JSON; return 1 if anything is damaged."""
    if not paths:
        raise ConfigError("nothing to dump: name a directory of logs, DIR/TOPIC, DIR/TOPIC-P or files")
    with Progress("dump", _size(paths) if sys.stderr.isatty() else -1, aside=True) as progress:
        dump = FullDump(
            _options(given),
            sys.stdout.buffer,
            _complain,
            span=_span(given),
            as_json=given.json,
            progress=progress.reach,
        )
        failed = False
        for path in paths:
            try:
                for source in _sources(path, print_note=_note):
                    dump.run(source)
            except KStoreError as error:
                failed = True
                sys.stdout.flush()
                told = output.in_one_line(error)
                _note(told if told.startswith(escaped(path)) else f"{path}: {told}")
    return 1 if failed or dump.damages else 0


def _note(text: str) -> None:
    print(f"kstore dump: {escaped(text)}", file=sys.stderr)


def _complain(path: str, position: int | None, what: str) -> None:
    sys.stdout.flush()
    where = path if position is None else f"{path}, position {position}"
    _note(f"{where}: {' '.join(what.split())}")


def _span(given: argparse.Namespace) -> Span:
    return Span(
        _offset("offset", given.from_offset),
        _offset("until-offset", given.to_offset),
        None if given.from_time is None else command_times.parse(given.from_time),
        None if given.to_time is None else command_times.parse(given.to_time),
    )


def _offset(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 1 << 63:
        raise ConfigError(f"--{name} {text}: an offset is a number from 0 to 2^63 - 1")
    return int(text)


def _sources(path: str, print_note: Callable[[str], object]) -> Iterator[Source]:
    """Yield the files of a path: those of each partition, or the single file."""
    if fs.exists(path) and not fs.is_directory(path):
        yield file_source(path)
        return
    files = partition_files(path) if fs.is_directory(path) else PartitionFiles([], [])
    if files.segments:  # a directory with segments may have any name
        yield Source(files.segments, _topic(path), path, files.others)
        return
    if names.parse_file_name(os.path.basename(path.rstrip("/"))) is not None:
        yield file_source(path.rstrip("/"))  # a directory with the name of a log's file: opening it raises the error
        return
    place = command_paths.find(path)
    if not place.entries and files.others:
        yield Source([], _topic(path), path, files.others)
        return
    for other in place.passed_over:
        print_note(f"passed over, it is no partition: {other}")
    if not place.entries:
        print_note(f"nothing to dump is in {path}")
    root = path if place.topic is None else os.path.dirname(path.rstrip("/"))
    for entry in place.entries:
        directory = os.path.join(root, f"{entry.topic}-{entry.partition}")
        try:
            files = partition_files(directory)
        except fs.MissingFileError:
            continue  # a writer has removed the partition
        yield Source(files.segments, entry.topic, directory, files.others)


def _topic(path: str) -> str | None:
    """Return the topic of a partition's directory; None if its name is not that of a partition."""
    try:
        return names.parse_partition_name(os.path.basename(fs.absolute(path))).topic
    except InvalidTopicError:
        return None


def _size(paths: list[str]) -> int:
    """Return the size of all logs, for the progress bar; unreadable paths count as 0."""
    total = 0
    for path in paths:
        try:
            for source in _sources(path, print_note=len):
                logs = [files.paths[names.LOG] for files in source.segments if names.LOG in files.wanted]
                total += sum(fs.stat(log).st_size for log in logs)
        except KStoreError:
            continue
    return total


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
