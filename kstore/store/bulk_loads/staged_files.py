"""Removes staged files after their load was committed or given up."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence

from kstore.base.threads import Workers
from kstore.disk import fs
from kstore.errors import ConfigError, KStoreError
from kstore.files import load_files

logger = logging.getLogger("kstore")

THREADS = 4  # to remove files; they mostly wait for the disk


def remove_staged(directories: Iterable[str], areas: Sequence[str]) -> None:
    """Remove the directories of task attempts, then the empty directories of their jobs; log failures.

    Removes only directories in one of the staging `areas`, and follows no symbolic link below the area.
    """
    jobs: dict[str, str] = {}
    area_of: dict[str, str] = {}

    def remove(directory: str, area: str) -> None:
        try:
            fs.remove_tree(directory, below=area)
        except KStoreError as error:
            logger.warning("%s: staged files stay behind: %s", directory, error)

    for directory in directories:
        try:
            area = area_of[directory] = load_files.check_staged(directory, areas)
        except ConfigError as error:
            logger.warning("staged files stay behind: %s", error)
            continue
        jobs[os.path.dirname(directory)] = area
    with Workers(THREADS, "kstore-adopt") as pool:
        for _ in pool.map(remove, area_of, area_of.values()):
            pass
    for job, area in sorted(jobs.items()):
        remove_job(job, area)


def remove_job(job: str, area: str) -> None:
    """Remove the directory of a job in a staging area if it is empty; log failures."""
    try:
        fs.refuse_links(job, below=area)
        if fs.exists(job) and not fs.listdir(job):
            fs.rmdir(job)
    except KStoreError as error:  # another attempt has started to stage in the directory
        logger.info("%s: stays behind: %s", job, error)
