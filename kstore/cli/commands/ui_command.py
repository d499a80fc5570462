"""`kstore ui`: serves pages about directories of logs to a browser on this machine, until Ctrl-C."""

from __future__ import annotations

import sys
import time
import webbrowser

from kstore.base.numbers import NEVER
from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths
from kstore.cli.commands import mounted_paths, object_store_options
from kstore.cli.stopping import Stopping
from kstore.objects.remote_objects import without_credentials
from kstore.ui.server import LOOPBACK, Server, is_loopback
from kstore.ui.viewed_store import ViewedStore

__all__ = ["run"]

_ABOUT = """\
Serve pages that show a directory of logs: its partitions, their segments over time and offsets, records, batches,
producers, groups, and why each segment is still there. The pages follow a log that is being written. Nothing is changed
and no lock is taken, so a store or a broker may be using the directory.
The printed address has a secret token. Only who has the address can see the pages, and only on this machine unless
--host says otherwise. Ctrl-C ends the server."""
_EXAMPLES = """examples:
  kstore ui data
  kstore ui data/orders-0 --port 8080
  kstore ui /var/lib/kafka/data -c /etc/kafka/server.properties
  kstore ui s3://bucket/backup
"""


def run(arguments: list[str]) -> int:
    """Run the subcommand and return its exit code."""
    parser = command_options.Parser("ui", _ABOUT, _EXAMPLES)
    parser.add_argument(
        "path", metavar="DIR", help="a directory of logs, DIR/TOPIC or DIR/TOPIC-P to begin with; or a URL"
    )
    parser.add_argument(
        "--port", type=command_options.whole(0, 65535), default=0, metavar="N", help="the port (default: a free one)"
    )
    parser.add_argument(
        "--host", default=LOOPBACK, metavar="ADDRESS", help=f"the address to listen on (default: {LOOPBACK})"
    )
    parser.add_argument("--open-browser", action="store_true", help="open the address in a browser")
    command_options.add_config(parser)
    object_store_options.add_reading(parser)
    asked = parser.parse_args(arguments)
    with mounted_paths.mounted("ui", [asked.path], asked) as (path,):
        place = command_paths.find(path)
        title = without_credentials(asked.path) if "://" in asked.path else place.root
        viewed = ViewedStore([place.root], config=command_options.given(asked), clock=_now, title=title)
        try:
            with Server(viewed, host=asked.host, port=asked.port) as server, Stopping() as stopping:
                _tell(server, _first_page(place), open_browser=asked.open_browser)
                while not stopping.wait(NEVER / 1000):
                    pass
        finally:
            viewed.close()
    return 0


def _first_page(place: command_paths.Place) -> str:
    """Return the page of what was named on the command line."""
    if place.topic is None:
        return "/"
    return f"/?topic={place.topic}" if place.partition is None else f"/partition/{place.topic}/{place.partition}"


def _tell(server: Server, page: str, *, open_browser: bool) -> None:
    if not is_loopback(server.host):
        print(
            f"kstore ui: warning: other machines can reach {escaped(server.base)}; the connection is not encrypted, so "
            "whoever can read it sees the token and the records",
            file=sys.stderr,
        )
    address = server.address(page)
    print(address, flush=True)
    print("kstore ui: open the address in a browser; Ctrl-C ends the server", file=sys.stderr)
    if open_browser:
        webbrowser.open(address)


def _now() -> int:
    return time.time_ns() // 1_000_000
