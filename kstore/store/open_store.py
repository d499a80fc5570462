"""Opens a store: resolves its settings, reads its directories, and finishes what a crash interrupted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kstore.config import cautions
from kstore.config.broker_config import BrokerConfig
from kstore.config.log_config import ConfigSource, LogConfig
from kstore.disk import fs
from kstore.errors import StorageError
from kstore.files import follower_file
from kstore.store import catalog
from kstore.store.administration import Administration
from kstore.store.bulk_loads.commit import BulkLoads
from kstore.store.catalog import Catalog
from kstore.store.leadership import Leadership
from kstore.store.manager import LogManager
from kstore.store.metadata import Metadata, WatchedMetadata
from kstore.store.read_only_logs import LogReaders

logger = logging.getLogger("kstore")


class Opening(NamedTuple):
    """The arguments of `Store.open`, checked."""

    config: ConfigSource
    settings: Mapping[str, object]
    clock: Callable[[], int] | None
    background: bool
    progress: Callable[[int, int], None] | None
    seed: int | None
    staging_dir: str | os.PathLike[str] | None


class Recovering(NamedTuple):
    """The parts of a store that finish what a crash interrupted."""

    administration: Administration
    loads: BulkLoads
    leadership: Leadership


def open_directories(
    paths: tuple[str, ...],
    mode: str,
    opening: Opening,
    assemble: Callable[[Metadata, LogManager | LogReaders, Opening], Recovering],
) -> None:
    """Open the directories at `paths`; if that fails, raise as `Store.open` does and leave nothing open or locked.

    `assemble` creates the parts of the store before any of them starts to work, so that the store owns them if an
    interrupt comes.
    """
    settings = opening.settings
    of_broker = {name: value for name, value in settings.items() if BrokerConfig.knows(name)}
    of_logs = {name: value for name, value in settings.items() if name not in of_broker}
    config = LogConfig.resolve(opening.config, of_logs)
    broker = BrokerConfig.resolve(opening.config).replace(**of_broker)
    if mode == "r":
        for path in paths:
            if not fs.exists(path):
                raise fs.MissingFileError(2, "no such log directory; mode 'r' creates nothing", path)
        watched = WatchedMetadata(paths, config, broker)
        assemble(watched, LogReaders(watched, opening.clock), opening)
        return
    config.check_for_writing()
    broker.check_cordoned([path for path in broker.cordoned_log_dirs if os.path.realpath(path) in paths])
    cautions.issue((*broker.warnings(), *config.warnings(broker)))
    metadata = Metadata(paths, config, broker)
    manager = LogManager(metadata, opening.clock)
    try:
        _load(metadata, manager)
        parts = assemble(metadata, manager, opening)
        _recover(parts, metadata, manager, opening.progress)
        parts.leadership.schedule(manager)
        manager.schedule(background=opening.background)
    except BaseException:
        metadata.close()
        manager.abandon()
        raise


def _load(metadata: Metadata, manager: LogManager) -> None:
    """Read the role, the directories and the file of topics; schedule the removal of directories marked as deleted."""
    metadata.role = follower_file.read_roles(manager.disks.roots)
    if metadata.role is not None:
        for root in manager.disks.roots:
            follower_file.refuse_pending_load(root)
    manager.take_role(metadata.role)
    listing = catalog.look(manager.disks.roots)
    for path in listing.passed_over:
        reason = "a symbolic link is not followed" if os.path.islink(path) else "it is no partition"
        logger.warning("%s: passed over, %s", path, reason)
    for entry in listing.entries:
        if entry.key in listing.doubles:
            both = " and ".join(listing.doubles[entry.key])
            entry.failure = StorageError(17, f"the partition is in more than one log directory: {both}", entry.path)
    metadata.passed_over = listing.passed_over
    metadata.load(Catalog(listing.entries), manager.disks.roots)
    for path in listing.deleted:
        manager.partitions.schedule_removal(path)


def _recover(
    parts: Recovering, metadata: Metadata, manager: LogManager, progress: Callable[[int, int], None] | None
) -> None:
    """Finish what a crash interrupted: topics, bulk loads, logs, transactions."""
    parts.administration.finish_interrupted()
    if not manager.disks.any_offline:
        missing = metadata.find_missing(manager.disks.roots)
        for entry in missing:
            logger.error("refused: %s", entry.failure)
        metadata.catalog.add(missing)
    shares = parts.loads.begin_recovery(manager)
    manager.recover(metadata.catalog.entries(), progress)
    parts.loads.finish_recovery(manager, shares)
    parts.leadership.recover()
