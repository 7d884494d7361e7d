"""Descriptions of the server and its models: metadata, configuration and statistics, as in KServe v2 and Triton.

They are JSON objects as dicts, which are also the arguments of gRPC's messages.
"""

from __future__ import annotations

from typing import Any

from ovgpu.serve.engines import Port
from ovgpu.serve.models import Models, Version
from ovgpu.version import OWN

EXTENSIONS = [
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "sequence",
    "sequence(string_id)",
    "statistics",
]
PLATFORM = "openvino_ir"


def server(shared_memory: bool) -> dict[str, Any]:
    """Return the metadata of the server."""
    extensions = [*EXTENSIONS, "system_shared_memory"] if shared_memory else EXTENSIONS
    return {"name": "ovgpu", "version": OWN, "extensions": extensions}


def model(models: Models, name: str, number: str) -> dict[str, Any]:
    """Return the metadata of a version of a model, by default of the current one, and the numbers of all versions."""
    version = models.find(name, number)
    engine = version.engine
    return {
        "name": version.name,
        "versions": [served.number for served in models.serving(name)],
        "platform": PLATFORM,
        "inputs": [_port(port) for port in engine.inputs],
        "outputs": [_port(port) for port in engine.outputs],
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": port.datatype, "shape": list(port.shape if port.shape is not None else [-1])}


def config(version: Version) -> dict[str, Any]:
    """Return the configuration of a model, as a ModelConfig of Triton.

    As there, shapes have a batch axis unless ``max_batch_size`` is positive: all first axes are then the batch axis.
    """
    engine = version.engine
    first = 1 if engine.has_rows else 0
    fields: dict[str, Any] = {
        "name": version.name,
        "platform": PLATFORM,
        "backend": "ovgpu",
        "max_batch_size": engine.max_batch_size if engine.has_rows else 0,
        "input": [_config_port(port, first, i in engine.optional_inputs) for i, port in enumerate(engine.inputs)],
        "output": [_config_port(port, first) for port in engine.outputs],
        "parameters": {"engine": {"string_value": engine.description}},
    }
    delay = {"max_queue_delay_microseconds": round(1000 * engine.max_wait_ms)}
    if engine.stateful:
        fields["sequence_batching"] = {"oldest": {"max_candidate_sequences": engine.max_sequences, **delay}}
        if version.idle_seconds is not None:
            fields["sequence_batching"]["max_sequence_idle_microseconds"] = round(1e6 * version.idle_seconds)
    elif engine.has_rows:
        fields["dynamic_batching"] = delay
    return fields


def _config_port(port: Port, first: int, optional: bool = False) -> dict[str, Any]:
    datatype = "STRING" if port.datatype == "BYTES" else port.datatype
    fields = {"name": port.name, "data_type": f"TYPE_{datatype}", "dims": _port(port)["shape"][first:]}
    return {**fields, "optional": True} if optional else fields


def statistics(version: Version) -> dict[str, Any]:
    """Return the statistics of a model, as a ModelStatistics of Triton: counts, and times in nanoseconds.

    Times of inputs and outputs are part of ``compute_infer``.
    """
    measured = version.statistics
    with measured.lock:
        inferences = measured.waited.count
        never: dict[str, int] = {"count": 0, "ns": 0}
        return {
            "name": version.name,
            "version": version.number,
            "last_inference": measured.last_inference,
            "inference_count": int(measured.rows.sum),
            "execution_count": measured.computed.count,
            "inference_stats": {
                "success": {"count": measured.succeeded, "ns": measured.nanoseconds[0]},
                "fail": {"count": measured.failed, "ns": measured.nanoseconds[1]},
                "queue": {"count": inferences, "ns": measured.queue_nanoseconds},
                **_computed(inferences, measured.inference_nanoseconds),
                "cache_hit": never,
                "cache_miss": never,
            },
            "batch_stats": [
                {"batch_size": rows, **_computed(size.count, size.nanoseconds)}
                for rows, size in sorted(measured.sizes.items())
            ],
        }


def _computed(count: int, nanoseconds: int) -> dict[str, Any]:
    durations = {"compute_input": 0, "compute_infer": nanoseconds, "compute_output": 0}
    return {name: {"count": count, "ns": ns} for name, ns in durations.items()}


def all_statistics(models: Models, name: str = "", number: str = "") -> list[dict[str, Any]]:
    """Return the statistics of a model, or of all. Raise ServeError if it is not loaded."""
    return [statistics(version) for version in ([models.find(name, number)] if name else models.serving())]


def index(models: Models, ready: bool = False) -> list[dict[str, str]]:
    """Return name, version, state and reason of the repository's models, or only of those that are loaded."""
    return [
        {"name": name, "version": version, "state": state, "reason": reason}
        for name, version, state, reason in models.index()
        if state == "READY" or not ready
    ]
