"""Applies one action to many partitions: the options, the loop and the output of the commands that change logs.

Invariant: an error of one partition is recorded in its result and does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from kstore.base.terminal import escaped
from kstore.cli import command_options, command_paths, output
from kstore.errors import KStoreError, UnknownTopicOrPartitionError
from kstore.files import names
from kstore.log.log import Log
from kstore.store import catalog
from kstore.store.store import Store

__all__ = ["PartitionPass", "Result", "add_settings", "parser"]

T = TypeVar("T")


def parser(command: str, about: str, examples: str, dry_run: str) -> command_options.Parser:
    """Return a parser with the options that come first in each command that passes over partitions."""
    made = command_options.Parser(command, about, examples)
    made.add_argument("paths", metavar="PATH", nargs="+", help="a data directory, DIR/TOPIC or DIR/TOPIC-P")
    made.add_argument("--topic", action="append", default=[], help="only this topic; may be given again")
    made.add_argument("--dry-run", action="store_true", help=dry_run)
    return made


def add_settings(made: command_options.Parser, *settings: str) -> None:
    """Add the options that come last in each such command: these settings, `--config` and `--json`."""
    command_options.add_settings(made, *settings)
    command_options.add_config(made)
    made.add_argument("--json", action="store_true", help="print JSON")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What was done (with `--dry-run`: would be done) to one partition, or the error. Immutable."""

    topic: str
    partition: int
    path: str
    done: T | None = None
    error: KStoreError | None = None


class PartitionPass(Generic[T]):
    """Calls `act` with the log of each partition, and keeps the results. Not thread-safe.

    `how` has arguments for `Log.open` and `Store.open`, such as a clock.
    """

    def __init__(self, asked: argparse.Namespace, act: Callable[[Log], T], **how: Any) -> None:
        self.results: list[Result[T]] = []
        self._asked = asked
        self._act = act
        self._given = command_options.given(asked)
        self._mode: Literal["r", "a"] = "r" if asked.dry_run else "a"
        self._how = how

    def partition(self, path: str) -> None:
        """Process a single partition, with the settings that a store around it keeps for its topic."""
        topic, number = names.parse_partition_name(os.path.basename(os.path.abspath(path)))[:2]
        self._keep(partial(self._of_directory, os.path.realpath(path)), topic, number, path)

    def stores(
        self,
        paths: list[str],
        wants: Callable[[Store, str], bool] = lambda *_: True,
        reach: Callable[[int, int], object] = lambda *_: None,
        **how: Any,
    ) -> int:
        """Process a store's partitions, or those of the given topics; return how many of them `wants` excludes.

        `reach` is called with the number of processed partitions and of all partitions.
        """
        entries = {(entry.topic, entry.partition): entry for entry in catalog.look(catalog.real_paths(paths)).entries}
        if not entries:
            raise UnknownTopicOrPartitionError(f"there is no partition in {', '.join(paths)}")
        for topic in self._asked.topic:
            if all(topic != name for name, _ in entries):
                raise UnknownTopicOrPartitionError(f"there is no topic {topic!r} in {', '.join(paths)}")
        named = sorted(key for key in entries if not self._asked.topic or key[0] in self._asked.topic)
        passed_over = 0
        with Store.open(paths, self._mode, config=self._given, background=False, **self._how, **how) as store:
            for done, (topic, number) in enumerate(named):
                reach(done, len(named))
                if wants(store, topic):
                    self._keep(
                        partial(self._of_store, store, topic, number), topic, number, entries[topic, number].path
                    )
                else:
                    passed_over += 1
        return passed_over

    def _of_directory(self, directory: str) -> Result[T]:
        config = command_paths.settings_in_force(directory, self._given)
        with Log.open(directory, self._mode, config=config, **self._how) as log:
            return self._result(log)

    def _of_store(self, store: Store, topic: str, number: int) -> Result[T]:
        return self._result(store.log(topic, number))

    def _result(self, log: Log) -> Result[T]:
        return Result(log.topic, log.partition, log.path, self._act(log))

    def _keep(self, act: Callable[[], Result[T]], topic: str, partition: int, path: str) -> None:
        try:
            self.results.append(act())
        except KStoreError as error:
            self.results.append(Result(topic, partition, path, error=error))

    def finish(
        self,
        command: str,
        note: str | None,
        totals: dict[str, int],
        facts_of: Callable[[T | None], dict[str, Any]],
        show: Callable[[], None],
    ) -> int:
        """Print the results, with `show` or as JSON, and the errors; return the exit code."""
        if self._asked.json:
            partitions = [
                {
                    "topic": result.topic,
                    "partition": result.partition,
                    "path": result.path,
                    **facts_of(result.done),
                    "error": None if result.error is None else str(result.error),
                }
                for result in self.results
            ]
            facts = {"dry_run": self._asked.dry_run, **totals, "partitions": partitions, "note": note}
            print(json.dumps(facts, indent=2))
        else:
            if note is not None:
                print(output.painted(escaped(note), "yellow"))
            show()
        return output.failures(command, self.results)
