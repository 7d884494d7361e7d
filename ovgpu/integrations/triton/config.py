"""Configuration of a model for Triton, ``config.pbtxt``, from the ports and states of its engine.

Triton's model_config.proto has the names and meanings of all fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import Error
from ovgpu.serve.engines import Engine, Port

SPECIAL = {"BYTES": "TYPE_STRING"}


@dataclass(frozen=True)
class TritonOptions:
    """Options of ``ovgpu triton``; see its ``--help``."""

    device: str = "AUTO"
    precision: str = ""
    batching: bool = True
    max_batch_size: int = 32
    max_sequences: int = 64
    max_wait_ms: float = 2.0
    idle_seconds: float = 60.0
    decoupled: bool = False
    device_tensors: bool = False


def model_config(name: str, engine: Engine, options: TritonOptions) -> dict[str, Any]:
    """Return the configuration of a model as a dict of its fields. Values of enumerations are of the class `Name`.

    Raises: Error for a port that Triton cannot have, or an option that does not fit the model.
    """
    if options.decoupled and not engine.stateful:
        raise Error("decoupled models answer several steps of a sequence, but this model has no states")
    if options.device_tensors:
        for port in (*engine.inputs, *engine.outputs):
            if port.datatype in ("BYTES", "BF16"):
                raise Error(f"'{port.name}' is {port.dtype.get_type_name()}, which cannot stay in the memory of a card")
    rows = max_rows(engine, options)
    config: dict[str, Any] = {
        "name": name,
        "backend": "python",
        "max_batch_size": rows,
        "input": [_input(engine, i, rows > 0, options) for i in range(len(engine.inputs))],
        "output": [
            _port(port, _batch_axis(engine.output_batch_axes, i), rows > 0) for i, port in enumerate(engine.outputs)
        ],
        "instance_group": [_instances(options.device)],
    }
    delay = {"max_queue_delay_microseconds": round(options.max_wait_ms * 1000)}
    if engine.stateful:
        config["sequence_batching"] = {
            "max_sequence_idle_microseconds": round(options.idle_seconds * 1e6),
            "oldest": {"max_candidate_sequences": options.max_sequences, **delay},
        }
    elif rows:
        config["dynamic_batching"] = delay
    if options.decoupled:
        config["model_transaction_policy"] = {"decoupled": True}
    parameters = {
        "batching": "no" * (not options.batching),
        "INFERENCE_PRECISION_HINT": options.precision,
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no" * options.device_tensors,
    }
    given = [{"key": key, "value": {"string_value": value}} for key, value in parameters.items() if value]
    return {**config, "parameters": given} if given else config


def max_rows(engine: Engine, options: TritonOptions) -> int:
    """Return the most rows of a batch that Triton gathers, or 0 if it gathers none.

    It can gather requests only if the batch axis is the first axis of all ports. A request to a decoupled model has a
    row for each step, so that the model gathers the batches.
    """
    axes = {*(engine.batch_axes or (None,)), *engine.output_batch_axes}
    return engine.max_batch_size if axes == {0} and not options.decoupled else 0


def triton_type(port: Port) -> str:
    """Return the name of a port's element type in Triton's configuration."""
    return SPECIAL.get(port.datatype, f"TYPE_{port.datatype}")


def _input(engine: Engine, index: int, batched: bool, options: TritonOptions) -> dict[str, Any]:
    """Return the fields of an input; see `_port`."""
    axis = _batch_axis(engine.batch_axes or (), index)
    fields = _port(engine.inputs[index], axis, batched, options.decoupled)
    if index in engine.optional_inputs:
        fields["optional"] = True
    if batched and -1 in fields["dims"]:  # Triton gathers requests of different shapes: the engine sorts them
        fields["allow_ragged_batch"] = True
    return fields


def _batch_axis(axes: Sequence[int | None], index: int) -> int | None:
    return axes[index] if axes else None


def _port(port: Port, axis: int | None, batched: bool, steps: bool = False) -> dict[str, Any]:
    """Return the fields of a port, without the batch axis if ``batched``, else with a dynamic one if ``steps``."""
    if port.shape is None:
        raise Error(f"'{port.name}' has a dynamic rank, which Triton's configuration cannot express")
    dims = list(port.shape)
    if axis is not None and batched:
        del dims[axis]
    elif axis is not None and steps:
        dims[axis] = -1
    fields: dict[str, Any] = {"name": port.name, "data_type": Name(triton_type(port)), "dims": dims}
    if not dims:  # Triton has no scalars: clients send one element
        fields["dims"] = [1]
        if batched:
            fields["reshape"] = {"shape": []}
    return fields


def _instances(device: str) -> dict[str, Any]:
    """Return the field ``instance_group`` for a device: one instance, or one for each of several cards."""
    if device == "AUTO":
        return {"kind": Name("KIND_AUTO"), "count": 1}
    if device == "CPU":
        return {"kind": Name("KIND_CPU"), "count": 1}
    cards = [card.strip() for card in device.removeprefix("MULTI:").split(",")]
    indices = [card.partition(".")[2] for card in cards]
    if any(card.partition(".")[0] != "NVIDIA" for card in cards) or not all(i.isdecimal() or not i for i in indices):
        raise Error(f"a model for Triton has the device AUTO, CPU, NVIDIA[.n] or MULTI:NVIDIA.0,NVIDIA.1, not {device}")
    gpus = [int(index) for index in indices if index]
    return {"kind": Name("KIND_GPU"), "count": 1, **({"gpus": gpus} if gpus else {})}


# ---- text


class Name(str):
    """Name of a value of an enumeration, which has no quotes in the text."""


def text(config: Mapping[str, Any]) -> str:
    """Return a configuration in protobuf's text format."""
    return "\n".join(_lines(config, "")) + "\n"


def _lines(fields: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in fields.items():
        if isinstance(value, list) and not any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{key}: [{', '.join(map(_scalar, value))}]"
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield f"{indent}{key} {{"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{key}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, Name):
        return str(value)
    return json.dumps(value, ensure_ascii=False)  # quotes and escapes of the format are those of JSON
