"""Paths of commands that read: a URL, or a directory with a backup, is mounted, and read like a directory from then on.

Invariant: a command that writes refuses a URL before it creates anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kstore.base.terminal import escaped
from kstore.cli import command_times
from kstore.cli.command_options import UsageError
from kstore.cli.commands import object_store_options
from kstore.errors import ReadOnlyError
from kstore.objects.prefix_paths import is_remote, prefix_paths

if TYPE_CHECKING:
    from kstore.objects.remote_prefix import RemoteOptions
    from kstore.objects.remote_state import RemoteState

__all__ = ["mounted", "refuse_urls", "state_at"]


@contextmanager
def mounted(command: str, paths: Sequence[str], asked: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the paths to read while the block runs: the given ones, but for those in prefixes where they are mounted.

    `asked` has the options of `object_store_options.add_reading`. Raises `UsageError` if they are given and no path
    is in a prefix.
    """
    remote = set(filter(is_remote, paths))
    given = object_store_options.given_to_read(asked)
    if given and not remote:
        shown = ", ".join(paths)
        raise UsageError(f"{given[0]} goes with a URL or the directory of a backup, and {shown} is neither")
    with ExitStack() as stack:
        if not remote:
            yield list(paths)
            return
        mounts = _Mounts(command, _options(asked), stack, whole=len(remote) > 1)
        yield [mounts.path(path) if path in remote else path for path in paths]


def _options(asked: argparse.Namespace) -> RemoteOptions:
    from kstore.objects.remote_prefix import RemoteOptions

    return RemoteOptions(
        storage=object_store_options.options_of(asked),
        cache=asked.cache,
        until=None if asked.backup_until is None else command_times.parse(asked.backup_until),
        with_deleted=asked.with_deleted,
    )


class _Mounts:
    """The prefixes of one command, each of them mounted once. Not thread-safe."""

    def __init__(self, command: str, options: RemoteOptions, stack: ExitStack, *, whole: bool) -> None:
        self._command, self._options, self._stack, self._whole = command, options, stack, whole
        self._roots: dict[str, str] = {}  # by the URL as it was given

    def path(self, path: str) -> str:
        """Return the path in a mounted prefix."""
        from kstore.objects.prefix_search import open_around

        for prefix, rest in prefix_paths(path):
            if prefix in self._roots:
                return _below(self._roots[prefix], rest)
        opened, rest = open_around(path, self._options, whole=self._whole)
        self._stack.enter_context(opened)
        self._roots[opened.url] = opened.root
        for note in opened.state.notes:
            print(f"kstore {self._command}: note: {escaped(f'{opened.root}: {note}')}", file=sys.stderr)
        return _below(opened.root, rest)


def state_at(root: str) -> RemoteState | None:
    """Return the state of a prefix that is mounted at this path; None for a directory."""
    from kstore.disk import mounts
    from kstore.objects.remote_tree import RemoteTree

    found = mounts.find(root)
    return found[0].state if found is not None and isinstance(found[0], RemoteTree) else None


def _below(root: str, rest: str) -> str:
    return f"{root}/{rest}" if rest else root


def refuse_urls(*paths: str) -> None:
    """Raise `ReadOnlyError` if a path that a command writes to is a URL, or leads into the directory of a backup."""
    for path in paths:
        if is_remote(path):
            from kstore.objects.remote_objects import without_credentials

            shown = without_credentials(path)
            what = (
                "an object store is only read; give a directory by its path"
                if "://" in path
                else "a backup is only read"
            )
            raise ReadOnlyError(f"{shown}: {what}")
