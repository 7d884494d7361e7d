"""Metrics for Prometheus: those of OpenVINO Model Server with the prefix ``ovgpu_``, and Triton's of inferences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from ovgpu.serve.calls import answered
from ovgpu.serve.log_queue import dropped_lines
from ovgpu.serve.models import Models, Version
from ovgpu.serve.openai import models as openai
from ovgpu.serve.openai.files import GENERATION
from ovgpu.serve.statistics import REASONS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MODEL = ("name", "version")
TRITON = ("model", "version")
APIS = {
    "Predict": "TensorFlowServing",
    **dict.fromkeys(openai.METHODS, "OpenAI"),
}


class Family:
    """Metric with its samples, in Prometheus' text format.

    The samples of a counter have its own name: prometheus_client would add ``_total``, and boards of other servers
    would not find them.
    """

    def __init__(self, kind: str, name: str, text: str, labels: Sequence[str] = MODEL) -> None:
        self._name, self._labels = name, labels
        self._lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def add(self, values: Sequence[str], number: float, suffix: str = "", **more: str) -> None:
        """Add a sample with the values of the labels."""
        labels = (*zip(self._labels, values), *more.items())
        shown = ",".join([f'{label}="{_escaped(value)}"' for label, value in labels])
        self._lines.append(f"{self._name}{suffix}{{{shown}}} {number:.17g}")

    def add_histogram(self, values: Sequence[str], histogram: Histogram) -> None:
        """Add the samples of a histogram."""
        total = 0
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts):
            total += count
            self.add(values, total, "_bucket", le=bound)
        self.add(values, total, "_count")
        self.add(values, histogram.sum, "_sum")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


class Metrics:
    """Metrics of a server, its models and its process."""

    def __init__(self, models: Models) -> None:
        self._models, self._process = models, CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        newest = {(version.name, version.number): version for version in reversed(self._models.versions())}
        versions = list(newest.values())  # without those that were replaced by the same number
        families = (*_requests(versions), *_engines(versions), *_triton(versions), *_texts(versions), *_server())
        return "".join(map(str, families)).encode() + generate_latest(self._process)


def _requests(versions: list[Version]) -> Iterator[Family]:
    call = ("api", "interface", "method", *MODEL)
    succeeded = Family("counter", "ovgpu_requests_success", "Inferences that succeeded.", call)
    failed = Family("counter", "ovgpu_requests_fail", "Inferences that failed.", call)
    request = Family(
        "histogram", "ovgpu_request_time_us", "Time from a request to its response.", ("interface", *MODEL)
    )
    waited = Family("histogram", "ovgpu_wait_for_infer_req_time_us", "Time in the queue.")
    computed = Family("histogram", "ovgpu_inference_time_us", "Time of a batch in the device's hands.")
    rows = Family("histogram", "ovgpu_batch_size", "Rows of a batch.")
    for version in versions:
        model, statistics = (version.name, version.number), version.statistics
        with statistics.lock:
            for (interface, method), counts in statistics.methods.items():
                api = APIS.get(method, "KServe")
                succeeded.add((api, interface, method, *model), counts.succeeded)
                failed.add((api, interface, method, *model), counts.failed)
            for interface, histogram in statistics.request_times.items():
                request.add_histogram((interface, *model), histogram)
            waited.add_histogram(model, statistics.waited)
            computed.add_histogram(model, statistics.computed)
            rows.add_histogram(model, statistics.rows)
    yield from (succeeded, failed, request, waited, computed, rows)


def _engines(versions: list[Version]) -> Iterator[Family]:
    current = Family("gauge", "ovgpu_current_requests", "Inferences that wait or run.")
    active = Family("gauge", "ovgpu_infer_req_active", "Inferences that run.")
    capacity = Family("gauge", "ovgpu_infer_req_queue_size", "Inferences that can run at a time.")
    streams = Family("gauge", "ovgpu_streams", "Batches that can run at a time.")
    sequences = Family("gauge", "ovgpu_sequences", "Sequences that are open.")
    slots = Family("gauge", "ovgpu_batch_slots", "Slots of the batch for sequences that are allocated.")
    most = Family("gauge", "ovgpu_max_sequences", "Sequences that can be open.")
    memory = Family("gauge", "ovgpu_device_memory_bytes", "Memory that models take on a device.", ("device",))
    devices: dict[str, int] = {}
    for version in versions:
        model, engine = (version.name, version.number), version.engine
        in_flight = version.in_flight
        current.add(model, in_flight)
        active.add(model, max(in_flight - engine.waiting, 0))
        capacity.add(model, engine.capacity)
        streams.add(model, engine.parallel)
        if engine.stateful:
            used, available = engine.slots
            sequences.add(model, used)
            slots.add(model, available)
            most.add(model, engine.max_sequences)
        devices.update(engine.memory())
    for device, used in devices.items():
        memory.add((device,), used)
    yield from (current, active, capacity, streams, sequences, slots, most, memory)


def _triton(versions: list[Version]) -> Iterator[Family]:
    """Yield Triton's metrics. Times of inputs and outputs, which Triton counts apart, are part of computing."""
    succeeded = Family("counter", "nv_inference_request_success", "Inferences that succeeded.", TRITON)
    failed = Family("counter", "nv_inference_request_failure", "Inferences that failed.", (*TRITON, "reason"))
    rows = Family("counter", "nv_inference_count", "Rows that were computed.", TRITON)
    batches = Family("counter", "nv_inference_exec_count", "Batches that were computed.", TRITON)
    pending = Family("gauge", "nv_inference_pending_request_count", "Inferences that wait.", TRITON)
    request = Family("counter", "nv_inference_request_duration_us", "Time from requests to responses.", TRITON)
    queue = Family("counter", "nv_inference_queue_duration_us", "Time in the queue.", TRITON)
    compute = Family("counter", "nv_inference_compute_infer_duration_us", "Time of computing.", TRITON)
    inputs = Family("counter", "nv_inference_compute_input_duration_us", "0: it is part of computing.", TRITON)
    outputs = Family("counter", "nv_inference_compute_output_duration_us", "0: it is part of computing.", TRITON)
    for version in versions:
        model, statistics = (version.name, version.number), version.statistics
        with statistics.lock:
            succeeded.add(model, statistics.succeeded)
            for reason in REASONS:
                failed.add((*model, reason), statistics.failures[reason])
            rows.add(model, statistics.rows.sum)
            batches.add(model, statistics.computed.count)
            request.add(model, sum(statistics.nanoseconds) // 1000)
            queue.add(model, statistics.queue_nanoseconds // 1000)
            compute.add(model, statistics.inference_nanoseconds // 1000)
        inputs.add(model, 0)
        outputs.add(model, 0)
        pending.add(model, version.engine.waiting)
    yield from (succeeded, failed, rows, batches, pending, request, queue, inputs, compute, outputs)


def _texts(versions: list[Version]) -> Iterator[Family]:
    texts = [version for version in versions if version.engine.task == GENERATION]
    if texts:
        from ovgpu.serve.openai.measurements import text_families

        yield from text_families(texts)


def _server() -> Iterator[Family]:
    calls = Family(
        "counter", "ovgpu_calls", "Calls of all kinds that were answered.", ("interface", "method", "status")
    )
    for key, count in list(answered.items()):  # the event loop may add to it
        calls.add(key, count)
    dropped = Family("counter", "ovgpu_log_lines_dropped", "Lines of logs that were dropped.", ("log",))
    for log, count in dropped_lines():
        dropped.add((log,), count)
    yield from (calls, dropped)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
