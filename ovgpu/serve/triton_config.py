"""Triton's ``config.pbtxt``, as far as it makes sense here."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.serve.settings import TRITON, Policy, Settings, settings_of
from ovgpu.serve.warm_up import Sample

messages: Any = model_config_pb2  # Any, because the module makes its classes when it is imported

log = logging.getLogger(__name__)

ZERO_ROWS = re.compile(r"^[^#\n]*\bmax_batch_size\s*:\s*0\b", re.MULTILINE)  # as if it were not set
BACKENDS = ("", "openvino", "onnxruntime", "ovgpu")
PLATFORMS = ("", "openvino_ir", "onnxruntime_onnx")
# Fields that take effect. One that ends with a dot stands for all fields of a message.
SUPPORTED = (
    "name",
    "platform",
    "backend",
    "default_model_filename",
    "max_batch_size",
    "version_policy.all",
    "version_policy.latest",
    "version_policy.latest.num_versions",
    "version_policy.specific.versions",
    "input.name",
    "input.data_type",
    "input.dims",
    "output.name",
    "output.data_type",
    "output.dims",
    "dynamic_batching",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "sequence_batching",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.oldest",
    "sequence_batching.oldest.max_candidate_sequences",
    "sequence_batching.oldest.max_queue_delay_microseconds",
    "sequence_batching.direct",
    "sequence_batching.direct.max_queue_delay_microseconds",
    "instance_group.name",
    "instance_group.kind",
    "instance_group.gpus",
    "instance_group.count",
    "parameters.",
    "model_warmup.",
    "response_cache",  # which is disabled
    "model_transaction_policy",  # which is not decoupled
)
# Fields that only tell how a model becomes faster, or what is so anyway: they are left out with a warning.
IGNORED = (
    "input.format",
    "input.optional",
    "output.label_filename",
    "dynamic_batching.preferred_batch_size",
    "sequence_batching.oldest.preferred_batch_size",
    "sequence_batching.direct.minimum_slot_utilization",
    "optimization.",
    "model_metrics.",
    "metric_tags.",
)


def parse(text: str, name: str, folder: Path) -> tuple[Settings, Policy]:
    """Return the settings of a model in its folder. Raise Error that names the field for anything else."""
    try:
        config = text_format.Parse(text, messages.ModelConfig())
    except text_format.ParseError as error:
        raise Error(f"{TRITON}: {error}") from None
    for path in sorted(set(_paths(config))):
        if not _is_one_of(path, SUPPORTED):
            if not _is_one_of(path, IGNORED):
                raise Error(f"{TRITON}: {path} is not supported")
            log.warning("%s of model '%s': %s is ignored", TRITON, name, path)
    _check_names(config, name)
    batches, sequences = config.dynamic_batching, config.sequence_batching
    strategy = sequences.oldest if sequences.HasField("oldest") else sequences.direct
    values: dict[str, Any] = dict(_instances(config))
    if config.max_batch_size:
        values["max_batch_size"] = config.max_batch_size
    elif ZERO_ROWS.search(text) and not config.HasField("sequence_batching"):
        values["batching"] = False
    if config.HasField("dynamic_batching"):
        values["max_wait_ms"] = batches.max_queue_delay_microseconds / 1000
    if config.HasField("sequence_batching"):
        values["max_wait_ms"] = strategy.max_queue_delay_microseconds / 1000
    for setting, number in (
        ("max_queue", batches.default_queue_policy.max_queue_size),
        ("max_sequences", sequences.oldest.max_candidate_sequences),
        ("idle_seconds", sequences.max_sequence_idle_microseconds / 1e6),
    ):
        if number:
            values[setting] = number
    if config.parameters:
        values["properties"] = {key: parameter.string_value for key, parameter in config.parameters.items()}
    settings = settings_of(
        values,
        TRITON,
        warm_up=tuple([_sample(warm_up, folder) for warm_up in config.model_warmup]) or None,
        inputs=_ports(config.input),
        outputs=_ports(config.output),
        model_file=config.default_model_filename,
    )
    return settings, _policy(config.version_policy)


def _paths(message: Any, at: str = "") -> Iterator[str]:
    """Yield the paths of all fields that are set. A message without fields has its own path."""
    for field, value in message.ListFields():
        path = at + field.name
        if field.message_type is None:
            yield path
        elif field.message_type.GetOptions().map_entry:
            yield f"{path}.{next(iter(value))}"
        else:
            for part in [value] if isinstance(value, Message) else value:
                found = list(_paths(part, f"{path}."))
                yield from found or [path]


def _is_one_of(path: str, known: tuple[str, ...]) -> bool:
    return any(path == name or (name.endswith(".") and f"{path}.".startswith(name)) for name in known)


def _check_names(config: Any, name: str) -> None:
    if config.name not in ("", name):
        raise Error(f"{TRITON}: name is '{config.name}', but the folder's is '{name}'")
    for field, known in (("backend", BACKENDS), ("platform", PLATFORMS)):
        value = getattr(config, field)
        if value not in known:
            raise Error(f"{TRITON}: {field} is '{value}', not one of {', '.join(known[1:])}")


def _policy(policy: Any) -> Policy:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return Policy(None)
    if kind == "specific":
        return Policy(None, frozenset(policy.specific.versions))
    return Policy(policy.latest.num_versions or 1)


def _instances(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of the only group of instances, which become requests."""
    if len(config.instance_group) > 1:
        raise Error(f"{TRITON}: instance_group has several groups, and one is supported")
    for group in config.instance_group:
        kinds = group.Kind
        if group.count:
            yield "requests", group.count
        if group.kind == kinds.Value("KIND_CPU"):
            yield "device", "CPU"
        elif group.kind == kinds.Value("KIND_MODEL"):
            raise Error(f"{TRITON}: instance_group.kind is KIND_MODEL, which is not supported")
        elif group.kind not in kinds.values():
            raise Error(f"{TRITON}: instance_group.kind is {group.kind}, which is unknown")
        elif group.kind == kinds.Value("KIND_GPU") or group.gpus:
            cards = [f"NVIDIA.{number}" for number in group.gpus] or [
                device for device in Core().available_devices if device.startswith("NVIDIA")
            ]
            yield "device", f"MULTI:{','.join(cards)}" if len(cards) > 1 else (cards or ["NVIDIA"])[0]


def _ports(ports: Any) -> tuple[tuple[str, str], ...]:
    return tuple([(port.name, _datatype(port)) for port in ports])


def _datatype(port: Any) -> str:
    """Return the data type of an input or output, or an empty string if it has none."""
    types = messages.DataType
    if port.data_type not in types.values():
        raise Error(f"{TRITON}: data_type of '{port.name}' is {port.data_type}, which is unknown")
    return types.Name(port.data_type).removeprefix("TYPE_").replace("STRING", "BYTES") if port.data_type else ""


def _sample(warm_up: Any, folder: Path) -> Sample:
    inputs: dict[str, tuple[tuple[int, ...], str | Path]] = {}
    for name, given in warm_up.inputs.items():
        contents: str | Path = "zeros"
        if given.WhichOneof("input_data_type") == "random_data":
            contents = "random"
        elif given.WhichOneof("input_data_type") == "input_data_file":
            contents = folder / "warmup" / Path(given.input_data_file).name
        inputs[name] = tuple(given.dims), contents
    return Sample(warm_up.name or "model_warmup", inputs, warm_up.batch_size or 1, warm_up.count or 1)
