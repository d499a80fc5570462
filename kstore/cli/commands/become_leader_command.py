"""`kstore become-leader`: makes a follower a leader."""

from __future__ import annotations

from typing import Any

from kstore.base.terminal import escaped
from kstore.cli import command_options, output
from kstore.cli.commands import mounted_paths
from kstore.errors import UnknownTopicOrPartitionError
from kstore.files.follower_file import read_roles
from kstore.store import catalog
from kstore.store.store import Store

__all__ = ["run"]

_ABOUT = """\
Make a follower the leader: each partition gets a new leader epoch that starts at its log end, and from then on clients
may append. Prepared transactions are completed, open ones time out, as after a crash. The old leader is not changed:
make sure that nothing writes to it any more. When it is back, make it a follower of this store ('kstore replicate'):
records that only it had are truncated then. A store that is a leader already gets new epochs, too."""
_EXAMPLES = """examples:
  kstore become-leader copy
  kstore become-leader copy --json
"""


def run(arguments: list[str]) -> int:
    parser = command_options.Parser("become-leader", _ABOUT, _EXAMPLES)
    parser.add_argument("paths", metavar="DIR", nargs="+", help="the log directories of one store")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parsed = parser.parse_args(arguments)
    mounted_paths.refuse_urls(*parsed.paths)
    roots = catalog.real_paths(parsed.paths)
    if not catalog.look(roots).entries:
        raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(parsed.paths)}")
    role = read_roles(roots)
    with Store.open(parsed.paths, background=False) as store:
        epochs = store.become_leader()
        ends = {key: store.log(*key).log_end_offset for key in sorted(epochs)}
    followed = None if role is None else list(role.source)
    if parsed.json:
        output.json_line(
            {"followed": followed, "partitions": [_facts(key, epochs[key], end) for key, end in ends.items()]}
        )
        return 0
    output.columns(
        ["partition", "leader epoch", "begins at"],
        [[f"{topic}-{number}", epochs[topic, number], end] for (topic, number), end in ends.items()],
    )
    whom = "it led already" if followed is None else f"it followed {', '.join(followed)}"
    print(escaped(f"{', '.join(parsed.paths)} leads now; {whom}"))
    return 0


def _facts(key: tuple[str, int], epoch: int, end: int) -> dict[str, Any]:
    return {"topic": key[0], "partition": key[1], "leader_epoch": epoch, "start_offset": end}
