"""The metric table for Prometheus, from a registry of its own: base units, bounded labels, no node ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ftis_node import __version__, metrics
from ftis_node.store import Store
from ftis_node.store_log import last_write
from ftis_node.store_records import Fact

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(store: Store, now: float) -> bytes:
    """All series of the node in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Series(lambda: _families(store, now)))
    return generate_latest(registry)


class _Series(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _families(store: Store, now: float) -> Iterator[Metric]:
    totals, latest, facts = store.totals(), store.latest(), store.facts()
    values = {**{name: point.value for name, point in latest.items()}, **totals}
    for metric in metrics.TABLE.values():
        labels = [metric.label] if metric.label else []
        family: CounterMetricFamily | GaugeMetricFamily
        if metric.kind is metrics.Kind.COUNTER:
            family = CounterMetricFamily(metric.name.removesuffix("_total"), metric.meaning, labels=labels)
        else:
            family = GaugeMetricFamily(metric.name, metric.meaning, labels=labels)
        for series, value in values.items():
            if series.partition("{")[0] == metric.name:
                family.add_metric([_label_value(series)] if labels else [], value)
        if family.samples:
            yield family
    info = GaugeMetricFamily("ftis_node_info", "1; the version and the swarm as labels.", labels=["version", "swarm"])
    info.add_metric([__version__, str(facts.get(Fact.SWARM_NAME) or "")], 1)
    yield info
    written = last_write(store)
    if written is not None:
        age = max(0.0, now - written)
        yield GaugeMetricFamily("ftis_data_age_seconds", "Time since the node last wrote anything.", value=age)


def _label_value(series: str) -> str:
    return series.partition('="')[2].removesuffix('"}')
