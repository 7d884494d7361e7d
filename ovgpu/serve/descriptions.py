"""Descriptions of the server and its models: metadata, configuration and statistics, as in KServe v2 and Triton.

They are dictionaries of JSON, and the arguments of the messages of gRPC.
"""

from __future__ import annotations

from typing import Any

from ovgpu.serve.engines import Port
from ovgpu.serve.models import Models, Version
from ovgpu.version import OWN

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "sequence", "statistics"]
PLATFORM = "openvino_ir"


def server() -> dict[str, Any]:
    """Return the metadata of the server."""
    return {"name": "ovgpu", "version": OWN, "extensions": EXTENSIONS}


def model(version: Version) -> dict[str, Any]:
    """Return the metadata of a model."""
    engine = version.engine
    return {
        "name": version.name,
        "versions": [version.number],
        "platform": PLATFORM,
        "inputs": [_port(port) for port in engine.inputs],
        "outputs": [_port(port) for port in engine.outputs],
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": port.datatype, "shape": list(port.shape if port.shape is not None else [-1])}


def config(version: Version) -> dict[str, Any]:
    """Return the configuration of a model, as a ModelConfig of Triton. Shapes have their batch axis."""
    engine = version.engine
    found: dict[str, Any] = {
        "name": version.name,
        "platform": PLATFORM,
        "backend": "ovgpu",
        "max_batch_size": 0,
        "input": [_config_port(port, number in engine.optional_inputs) for number, port in enumerate(engine.inputs)],
        "output": [_config_port(port) for port in engine.outputs],
        "parameters": {"engine": {"string_value": engine.description}},
    }
    if engine.stateful:
        found["sequence_batching"] = {"oldest": {"max_candidate_sequences": engine.max_batch_size}}
    elif engine.max_batch_size > 1:
        found["dynamic_batching"] = {}
    return found


def _config_port(port: Port, optional: bool = False) -> dict[str, Any]:
    kind = "STRING" if port.datatype == "BYTES" else port.datatype
    found = {"name": port.name, "data_type": f"TYPE_{kind}", "dims": _port(port)["shape"]}
    return {**found, "optional": True} if optional else found


def statistics(version: Version) -> dict[str, Any]:
    """Return the statistics of a model, as a ModelStatistics of Triton: counts, and times in nanoseconds."""
    found = version.statistics
    with found.lock:
        inferences = found.waited.count
        return {
            "name": version.name,
            "version": version.number,
            "last_inference": found.last_inference,
            "inference_count": inferences,
            "execution_count": found.computed.count,
            "inference_stats": {
                "success": {"count": found.succeeded, "ns": found.nanoseconds[0]},
                "fail": {"count": found.failed, "ns": found.nanoseconds[1]},
                "queue": {"count": inferences, "ns": found.queue_nanoseconds},
                "compute_infer": {"count": inferences, "ns": found.inference_nanoseconds},
            },
            "batch_stats": [
                {"batch_size": rows, "compute_infer": {"count": size.count, "ns": size.nanoseconds}}
                for rows, size in sorted(found.sizes.items())
            ],
        }


def all_statistics(models: Models, name: str = "", number: str = "") -> list[dict[str, Any]]:
    """Return the statistics of a model, or of all. Raise ServeError if it is not loaded."""
    return [statistics(version) for version in ([models.find(name, number)] if name else models.current.values())]


def index(models: Models, ready: bool = False) -> list[dict[str, str]]:
    """Return name, version, state and reason of the repository's models, or only of those that are loaded."""
    return [
        {"name": name, "version": version, "state": state, "reason": reason}
        for name, version, state, reason in models.index()
        if state == "READY" or not ready
    ]
