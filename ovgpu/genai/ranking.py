"""Candidates for beam search: the log probabilities of tokens, or of the most likely ones, computed by the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.model import Model, Node, Output
from ovgpu.ops.activation.softmax import LogSoftmax
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Constant, Result
from ovgpu.ops.movement.slicing import Slice
from ovgpu.ops.sort.topk import TopK11
from ovgpu.types import Type

END = 2**31 - 1  # a bound that Slice reads as the end of the axis
LOG_PROBABILITIES, CANDIDATES = "log_probabilities", "candidates"


def add_ranking(model: Model, logits: int, count: int | None, normalise: bool = True) -> int:
    """Replace an output of logits [batch, length, vocabulary] in place by log probabilities of the last position.

    ``logits`` is its index. The new output, whose index is returned, has those of all tokens, f32 [batch, 1,
    vocabulary]. With ``count``, it has those of the most likely ones, f32 [batch, 1, count], the greatest first, and
    the output after it these tokens, i64 [batch, 1, count]; of equal ones, the first come first. Without
    ``normalise``, the logits are log probabilities already. Raises: Error for logits of another shape.
    """
    result = model.results[logits]
    (source,) = result.sources
    assert source is not None
    if source.partial_shape.rank.is_dynamic or len(source.partial_shape) != 3:
        raise Error(f"logits have the shape [batch, length, vocabulary], not {source.partial_shape}")
    bounds = [_constant([value]) for value in (-1, END, 1, 1)]  # start, stop, step, axis
    (logs,) = Node(Slice(), [source, *bounds], name="last_logits").ports
    if logs.element_type != Type.f32:
        (logs,) = Node(Convert(destination_type=Type.f32), [logs]).ports
    if normalise:
        (logs,) = Node(LogSoftmax(axis=-1), [logs], name=LOG_PROBABILITIES).ports
    ports = [logs]
    if count is not None:
        best = TopK11(axis=2, mode="max", sort="value", index_element_type=Type.i64)
        ports = Node(best, [logs, _constant(count)], 2, name=CANDIDATES).ports
    for port, name in zip(ports, (LOG_PROBABILITIES, CANDIDATES)):
        port.set_names({name})
    model.remove_result(result)
    model.add_results([Node(Result(), [port], name=f"{port.get_any_name()}/result") for port in ports])
    model.validate_nodes_and_infer_types()
    return len(model.results) - len(ports)


def _constant(value: Any) -> Output:
    array = np.array(value, np.int64)
    return Node(Constant(element_type=Type.i64, value=array), []).ports[0]
