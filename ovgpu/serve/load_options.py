"""Options of one load of a model, which a client gives as a ModelConfig of Triton."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from ovgpu.batching.sequence_batcher import MAX_SEQUENCES
from ovgpu.serve import descriptions
from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.serve.models import LoadOptions, Version

messages: Any = model_config_pb2  # Any, because the module makes its classes when it is imported

MAX_ROWS = 4096  # of a batch: the warm-up runs one, which the server's user has not chosen
MAX_DELAY_US = 60_000_000
BATCH, DELAY = "max_batch_size", "dynamic_batching.max_queue_delay_microseconds"
IDLE = "sequence_batching.max_sequence_idle_microseconds"
SEQUENCES = "sequence_batching.oldest.max_candidate_sequences"
SEQUENCE_DELAY = "sequence_batching.oldest.max_queue_delay_microseconds"
# Numbers of a configuration that a load takes, and their largest values.
NUMBERS = {
    BATCH: MAX_ROWS,
    DELAY: MAX_DELAY_US,
    SEQUENCES: MAX_SEQUENCES,
    SEQUENCE_DELAY: MAX_DELAY_US,
    IDLE: 2**62,
}
# Fields in which a configuration may only say what the server's says.
FIXED = ("name", "platform", "backend", "input", "output", "parameters")


def load_options(parameters: Mapping[str, Any]) -> LoadOptions | None:
    """Return the options in the parameters of a load: ``config`` is the JSON of a ModelConfig. None without it.

    Raises: ServeError for a malformed configuration, and for fields and parameters that the server does not support.
    """
    for name in parameters:
        if name.startswith("file:"):
            raise ServeError(
                Status.UNIMPLEMENTED, f"the parameter {name[:100]} is not supported: files are not uploaded"
            )
        if name != "config":
            raise invalid(f"load has no parameter '{name}'")
    if "config" not in parameters:
        return None
    text = parameters["config"]
    if not isinstance(text, str):
        raise invalid("the parameter config is no string")
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("it is no object")
        message = json_format.ParseDict(document, messages.ModelConfig())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise invalid(f"the parameter config is no ModelConfig: {str(error).partition(chr(10))[0]}") from None
    message.parameters.pop("engine", None)  # the server's own description of how a model runs
    config, given = _as_dict(message), dict(_numbers(document))
    for path in _paths(config):
        if path.partition(".")[0] not in FIXED and not any(f"{known}.".startswith(f"{path}.") for known in NUMBERS):
            raise ServeError(Status.UNIMPLEMENTED, f"{path} of a ModelConfig is not supported")
    for path, number in given.items():
        if not 0 <= number <= NUMBERS[path]:
            raise invalid(f"{path} is {number}, not 0 to {NUMBERS[path]}")
    changes: dict[str, Any] = {}
    if given.get(BATCH):
        changes |= {"batching": True, "max_batch_size": given[BATCH]}
    elif BATCH in given and "sequence_batching" not in config:
        changes["batching"] = False
    if given.get(SEQUENCES):
        changes["max_sequences"] = given[SEQUENCES]
    for path in (DELAY, SEQUENCE_DELAY):
        if path in given:
            changes["max_wait_ms"] = given[path] / 1000
    return LoadOptions(changes, given[IDLE] / 1e6 if given.get(IDLE) else None, partial(_check, config))


def _numbers(document: Any, at: str = "") -> Iterator[tuple[str, int]]:
    """Yield (path, value) of the numbers of a configuration that a load takes, in either spelling of its fields.

    Messages do not tell zeros from fields that are missing, but JSON does.
    """
    for name, value in document.items():
        path = at + re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
        if path in NUMBERS and value is not None:
            yield path, int(value)
        elif isinstance(value, dict):
            yield from _numbers(value, f"{path}.")


def _paths(config: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield the paths of all fields, those of messages in other messages behind a dot."""
    for name, value in config.items():
        yield at + name
        if isinstance(value, dict):
            yield from _paths(value, f"{at}{name}.")


def _check(config: dict[str, Any], version: Version) -> None:
    """Raise ServeError if a version's configuration lacks something that ``config`` has."""
    _compare(config, _as_dict(messages.ModelConfig(**descriptions.config(version))), "")


def _as_dict(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _compare(wanted: Any, own: Any, at: str) -> None:
    """Raise ServeError for a value that differs. Inputs and outputs may be in any order."""
    if isinstance(wanted, dict) and isinstance(own, dict):
        for name, value in wanted.items():
            _compare(value, own.get(name), f"{at}.{name}" if at else name)
    elif at in ("input", "output") and own is not None:
        ports = {port["name"]: port for port in own}
        for port in wanted:
            _compare(port, ports.get(port.get("name")), f"{at} '{port.get('name')}'")
    elif wanted != own:
        raise invalid(f"the configuration's {at} is {wanted}, but the model has {'none' if own is None else own}")
