"""`kstore adopt`: appends a job that Spark has staged in an object store."""

from __future__ import annotations

import argparse

from kstore.base.terminal import escaped
from kstore.cli import command_options, output
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.store.bulk_loads.load_manifest import Adopted
from kstore.store.store import Store

__all__ = ["run"]

_ABOUT = """\
Append a job that kstore.spark.upload has staged in an object store to a directory of logs: all of it or nothing, and
once. Lengths and checksums are compared with the job's manifest before anything is appended. Topics that are missing
are created. Afterwards the job's objects are deleted; a repeated call says that it was adopted before. An object store
needs obstore: pip install 'kstore[backup]'."""
_EXAMPLES = """examples:
  kstore adopt s3://bucket/stage/8c0b7e5d4f8a4c0f9d1f0f7a5b6c3e21 --to data
  kstore adopt s3://bucket/stage/8c0b7e5d4f8a4c0f9d1f0f7a5b6c3e21 --to data --option region=eu-central-1"""


def run(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    mounted_paths.refuse_urls(parsed.to)
    storage = object_store_options.options_of(parsed)
    with Store.open(parsed.to, background=False) as store:
        done = store.adopt(parsed.url, storage=storage)
    if parsed.json:
        output.json_line(_facts(done))
    else:
        _show(done, parsed)
    return 0


def _show(done: Adopted, parsed: argparse.Namespace) -> None:
    if done.duplicate:
        print("nothing is appended: this job, or this or a later version of its transaction, was loaded before")
        return
    for (topic, number), (first, end) in sorted(done.offsets.items()):
        print(f"{topic}-{number}: offsets {first} to {end - 1}")
    print(f"{output.count(done.records, 'record')}, {output.size(done.bytes)}, into {escaped(parsed.to)}")


def _facts(done: Adopted) -> dict[str, object]:
    parts = [
        {"topic": topic, "partition": number, "first_offset": first, "last_offset": end - 1}
        for (topic, number), (first, end) in sorted(done.offsets.items())
    ]
    return {"records": done.records, "bytes": done.bytes, "duplicate": done.duplicate, "partitions": parts}


def _parser() -> command_options.Parser:
    parser = command_options.Parser("adopt", _ABOUT, _EXAMPLES)
    parser.add_argument("url", metavar="URL", help="the URL of the job, which kstore.spark.upload has returned")
    parser.add_argument("--to", metavar="DIR", required=True, help="the directory of logs")
    object_store_options.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
