"""The sources that one registry or one provider exports, with their labels."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kstore.metrics.metric_families import Sample
from kstore.metrics.metric_samples import Source, samples_of


class Labelled(NamedTuple):
    """A sample with the names of its labels."""

    sample: Sample
    labels: dict[str, str]


class Exported:
    """Logs, stores, replications and backups, held weakly: a closed or collected one has no samples. Thread-safe."""

    def __init__(self) -> None:
        self._sources: list[tuple[weakref.ref[Source], dict[str, str]]] = []
        self._lock = threading.Lock()

    def add(self, source: Source, labels: Mapping[str, str] | None) -> None:
        """Add a source; raise `ValueError` if one of the same kind has the same labels."""
        if not isinstance(source, Source):
            raise TypeError(f"source must be a Log, a Store, a Replication or a Backup, not {type(source).__name__}")
        added = {str(name): str(value) for name, value in (labels or {}).items()}
        with self._lock:
            kept = [each for each in self._sources if (other := each[0]()) is not None and not other.closed]
            for reference, given in kept:
                if type(reference()) is type(source) and given == added:
                    raise ValueError(
                        f"{reference()!r} is exported there with the labels {given}: give other labels to {source!r}"
                    )
            self._sources = [*kept, (weakref.ref(source), added)]

    def samples(self) -> Iterator[Labelled]:
        """Yield the current samples of all sources."""
        for reference, labels in self._sources:
            source = reference()
            if source is not None:
                for sample in samples_of(source):
                    yield Labelled(sample, {**dict(zip(sample.family.labels, sample.labels, strict=True)), **labels})
