"""Metrics for Prometheus. Their names are those of OpenVINO Model Server with the prefix ``ovgpu_``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ovgpu.serve.log_queue import dropped_lines
from ovgpu.serve.models import Models, Version
from ovgpu.serve.statistics import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MODEL = ("name", "version")
CALL = ("interface", "method", *MODEL)


class Metrics(Collector):
    """Collector of the statistics of models."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        succeeded = CounterMetricFamily("ovgpu_requests_success", "Inferences that succeeded.", labels=CALL)
        failed = CounterMetricFamily("ovgpu_requests_fail", "Inferences that failed.", labels=CALL)
        request = _histogram("ovgpu_request_time_us", "Time from a request to its response.", CALL)
        waited = _histogram("ovgpu_wait_for_infer_req_time_us", "Time in the queue.", MODEL)
        computed = _histogram("ovgpu_inference_time_us", "Time of a batch in the device's hands.", MODEL)
        rows = _histogram("ovgpu_batch_size", "Rows of a batch.", MODEL)
        current = GaugeMetricFamily("ovgpu_current_requests", "Inferences that wait or run.", labels=MODEL)
        sequences = GaugeMetricFamily("ovgpu_sequences", "Sequences that are open.", labels=MODEL)
        slots = GaugeMetricFamily("ovgpu_batch_slots", "Slots of the batch for sequences.", labels=MODEL)
        memory = GaugeMetricFamily(
            "ovgpu_device_memory_bytes", "Memory that models take on a device.", labels=("device",)
        )
        dropped = CounterMetricFamily("ovgpu_log_lines_dropped", "Lines of logs that were dropped.", labels=("log",))
        for log, count in dropped_lines():
            dropped.add_metric([log], count)
        devices: dict[str, int] = {}
        versions = {(version.name, version.number): version for version in reversed(self._models.versions())}
        for version in versions.values():  # only the current one of versions with the same number
            labels = [version.name, version.number]
            statistics = version.statistics
            with statistics.lock:
                for (interface, method), calls in statistics.interfaces.items():
                    call = [interface, method, *labels]
                    succeeded.add_metric(call, calls.succeeded)
                    failed.add_metric(call, calls.failed)
                    _add(request, call, calls.microseconds)
                for family, histogram in (
                    (waited, statistics.waited),
                    (computed, statistics.computed),
                    (rows, statistics.rows),
                ):
                    _add(family, labels, histogram)
            _add_gauges(version, labels, current, sequences, slots)
            devices.update(version.engine.memory())
        for device, used in devices.items():
            memory.add_metric([device], used)
        yield from (succeeded, failed, request, waited, computed, rows, current, sequences, slots, memory, dropped)


def _add_gauges(
    version: Version,
    labels: list[str],
    current: GaugeMetricFamily,
    sequences: GaugeMetricFamily,
    slots: GaugeMetricFamily,
) -> None:
    used, available = version.engine.slots
    current.add_metric(labels, version.in_flight)
    if version.engine.stateful:
        sequences.add_metric(labels, used)
        slots.add_metric(labels, available)


def _histogram(name: str, text: str, labels: tuple[str, ...]) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, labels=labels)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    buckets, total = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, histogram.sum)
