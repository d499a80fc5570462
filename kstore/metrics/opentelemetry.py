"""Exports to OpenTelemetry with observable instruments of a meter, whose callbacks a reader calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from kstore.base import optional
from kstore.metrics.exported_sources import Exported, Labelled
from kstore.metrics.metric_families import FAMILIES, Family

if TYPE_CHECKING:
    from kstore.base.stats import HistogramStats
    from kstore.metrics.metric_samples import Source

_instruments: weakref.WeakKeyDictionary[Any, Instruments] = weakref.WeakKeyDictionary()


class Instruments:
    """The instruments of one provider, for all sources that are exported to it.

    Each instrument has its own callback. The first callback of a collection takes all samples; the other callbacks use
    the same samples. OpenTelemetry has no observable histogram, so the count, the sum and the buckets of a histogram
    are counters.
    """

    def __init__(self, library: Any, provider: Any) -> None:
        self.exported = Exported()
        self._observation = library.Observation
        self._taken: dict[str, list[Labelled]] = {}
        self._lock = threading.Lock()
        meter = provider.get_meter("kstore")
        for family in FAMILIES:
            if family.kind == "gauge":
                self._make(meter.create_observable_gauge, family, family.name, family.ucum, _value)
            elif family.kind == "counter":
                self._make(meter.create_observable_counter, family, family.name, family.ucum, _value)
            else:
                create = meter.create_observable_counter
                self._make(create, family, f"{family.name}.count", "1", partial(_member, "count"))
                self._make(create, family, f"{family.name}.sum", family.ucum, partial(_member, "sum"))
                self._make(create, family, f"{family.name}.bucket", "1", _buckets)

    def _make(self, create: Any, family: Family, name: str, unit: str, observe: Callable[..., Iterable[Any]]) -> None:
        def callback(_: object) -> Iterable[Any]:
            return [
                self._observation(value, labels)
                for each in self._samples(name, family)
                for value, labels in observe(each)
            ]

        create(name, callbacks=[callback], unit=unit, description=family.text)

    def _samples(self, name: str, family: Family) -> list[Labelled]:
        """Return the samples of a family; take new samples if the instrument `name` has had the present ones."""
        with self._lock:
            if name not in self._taken:
                by_family: dict[Family, list[Labelled]] = {}
                for each in self.exported.samples():
                    by_family.setdefault(each.sample.family, []).append(each)
                self._taken = {known: by_family.get(of, []) for known, of in _NAMES.items()}
            return self._taken.pop(name)


def _value(each: Labelled) -> Iterable[tuple[float, dict[str, str]]]:
    value = cast("float", each.sample.value)
    return [(int(value) if isinstance(value, bool) else value, each.labels)]


def _member(name: Literal["count", "sum"], each: Labelled) -> Iterable[tuple[float, dict[str, str]]]:
    return [(cast("HistogramStats", each.sample.value)[name], each.labels)]


def _buckets(each: Labelled) -> Iterable[tuple[float, dict[str, str]]]:
    stats = cast("HistogramStats", each.sample.value)
    for bound, count in [*stats["buckets"], (float("inf"), stats["count"])]:
        yield int(count), {**each.labels, "le": "+Inf" if bound == float("inf") else str(bound)}


_NAMES: dict[str, Family] = {
    f"{family.name}{suffix}": family
    for family in FAMILIES
    for suffix in ((".count", ".sum", ".bucket") if family.kind == "histogram" else ("",))
}


def export(source: Source, meter_provider: Any, attributes: Mapping[str, str] | None) -> None:
    """See `kstore.export_to_opentelemetry`."""
    library = optional.opentelemetry_metrics("export_to_opentelemetry")
    provider = library.get_meter_provider() if meter_provider is None else meter_provider
    instruments = _instruments.get(provider)
    if instruments is None:
        instruments = _instruments[provider] = Instruments(library, provider)
    instruments.exported.add(source, attributes)
