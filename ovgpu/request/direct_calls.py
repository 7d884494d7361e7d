"""Direct calls: inferences on a device that copy small arrays to pinned memory, launch one graph, and wait for it.

Most programs make the same calls again and again. `Session.infer` tries direct calls first. `DirectCall.of` takes an
inference that can be replayed, and keeps what it needs in a form that little Python checks and runs: addresses, element
types, shapes, the graph, the arrays of results. At the first mismatch, `Session.infer` takes the general way: it sets
all inputs, and `Session.run` runs the inference.

NOTE: each line of a `DirectCall` adds to the time of every inference, and a call of a peer takes a few microseconds in
all. So functions are long, and attributes are looked up rather than methods called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ovgpu.errors import is_out_of_memory
from ovgpu.ops.base.op import Array
from ovgpu.request.downloads import ResultTensor, buffer_of
from ovgpu.request.inputs import RequestInput
from ovgpu.request.large_uploads import is_large
from ovgpu.request.outputs import RequestOutput
from ovgpu.request.pinned import StagedTensor
from ovgpu.request.replays import Replay
from ovgpu.request.results import OutputKeys, OVDict
from ovgpu.tensor import Tensor

KEPT = object()
"""Stands for the value of an input that is not passed."""


class _Input(NamedTuple):
    """An input, and the pinned array that the graph reads.

    ``own`` is the input's own tensor, whose memory the array is. It is None if the array has copies of an array that
    the caller shares, or of a tensor that it has bound.
    """

    input: RequestInput
    own: Tensor | None
    host: Array
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _Result(NamedTuple):
    """An output, its own tensor, and the pinned array that the graph writes: the tensor's memory."""

    output: RequestOutput
    tensor: ResultTensor
    buffer: Array


class DirectCall:
    """Inference that can be run again by copies, which `take` makes, and one `launch`. The session waits for it."""

    __slots__ = (
        "_binding",
        "_data",
        "_exposed",
        "_has_large",
        "_indices",
        "_inputs",
        "_kept",
        "_keys",
        "_launch",
        "_own",
        "_results",
        "_transition",
        "replay",
    )

    def __init__(self, replay: Replay, inputs: Sequence[_Input], results: Sequence[_Result]) -> None:
        self.replay = replay
        self._binding, self._transition, self._launch = (
            replay.binding,
            replay.transition,
            replay.executor.backend.launch_whole,
        )
        self._inputs, self._results = tuple(inputs), tuple(results)
        self._keys = OutputKeys([each.output.port for each in results])
        self._data = [each.buffer.view(each.tensor.element_type.to_dtype()) for each in results]
        self._has_large = any(is_large(each.host) for each in inputs)
        self._exposed, self._kept = False, [KEPT] * len(inputs)
        self._own: list[tuple[RequestInput, Tensor, Array]] = [
            (each.input, each.own, each.host) for each in inputs if each.own is not None
        ]
        self._indices: dict[Any, int] = {index: index for index in range(len(inputs))}
        for index, each in enumerate(inputs):
            self._indices.update(dict.fromkeys(each.input.port.get_names(), index))

    @staticmethod
    def of(replay: Replay, inputs: Sequence[RequestInput], outputs: Sequence[RequestOutput]) -> DirectCall | None:
        """Return the direct call for a replay of a request.

        Return None if an input is neither in a pinned tensor of the request's own nor copied to pinned memory, or if an
        output is not in a pinned tensor of the request's own: larger results stay on the device until they are read.
        """
        taken = [_input_of(input_) for input_ in inputs]
        results = [_result_of(output) for output in outputs]
        if None in taken or None in results:
            return None
        return DirectCall(replay, taken, results)  # type: ignore[arg-type]

    def take(self, inputs: Any, share: bool) -> bool:
        """Set inputs as `RequestInput.set` does, and copy what the caller shares of the others.

        Return False, and change nothing, if a tensor or a state is no longer where it was, or if a value is not an
        array on the host of the right type and shape.

        NOTE: all is checked before anything is copied. A value may lie in a tensor of the request, so that a second
        copy of it, in the general way, would differ from the first one.
        """
        for output, tensor, buffer in self._results:
            if output._tensor is not tensor or buffer_of(tensor) is not buffer or output.bound:
                return False
        if self._transition is not None and not self._transition.match():
            return False
        values: Sequence[Any] | None
        if inputs is None:
            for input_, memory, host in self._own:
                if input_._tensor is not memory or memory._array is not host or input_.shared_array is not None:
                    return False
            if len(self._own) == len(self._inputs):
                if self._has_large:
                    self._copy_large([])
                return True
            values = self._kept
        elif inputs.__class__ is list or inputs.__class__ is tuple:
            values = inputs
        else:
            values = self._values(inputs)
        if values is None or len(values) != len(self._inputs):
            return False
        copies = []
        for (input_, own, host, dtype, shape), value in zip(self._inputs, values):
            if value is KEPT:
                if own is not None:
                    if input_._tensor is not own or own._array is not host or input_.shared_array is not None:
                        return False
                    continue
                value = input_.staged_source() if input_.shared_host is host else None
                if value is None or value.dtype != dtype or value.shape != shape:
                    return False
            elif value.__class__ is not np.ndarray or value.shape != shape:
                return False
            elif value.dtype is not dtype and value.dtype != dtype:  # that of a pickled array is only equal
                return False
            elif share:
                flags = value.flags  # a read-only array is copied to the input's own memory, as in OpenVINO
                if own is not None or input_.shared_host is not host:
                    return False
                if not (flags.c_contiguous and flags.aligned and flags.writeable):
                    return False
            elif own is None or input_._tensor is not own or own._array is not host or input_.shared_array is not None:
                return False
            copies.append((host, value))
        if self._has_large:
            self._copy_large(copies)
        else:
            for host, value in copies:
                host[...] = value
        if share and inputs is not None:
            for each, value in zip(self._inputs, values):
                if value is not KEPT:
                    each.input._tensor, each.input.shared_array = None, value
        return True

    def _copy_large(self, copies: Sequence[tuple[Array, Array]]) -> None:
        """Copy values to pinned arrays, and begin to upload large ones."""
        values = {id(host): value for host, value in copies}
        for each in self._inputs:
            value = values.get(id(each.host))
            if each.own is not None:
                each.input.is_sent = False
                each.input.stage_own(value)
            elif value is not None:
                each.input.stage(value)

    def _values(self, inputs: Any) -> list[Any] | None:
        """Return the value of each input, or KEPT; None if ``inputs`` is neither a dict by names and indices nor a
        single array."""
        if inputs.__class__ is np.ndarray:
            return [inputs] if len(self._inputs) == 1 else None
        if inputs.__class__ is not dict:
            return None
        values, indices = self._kept.copy(), self._indices
        for key, value in inputs.items():
            # Other keys are converted, or refused: 0.0 equals 0, but is no index.
            index = indices.get(key) if key.__class__ is str or key.__class__ is int else None
            if index is None:
                return None
            values[index] = value
        return values

    def launch(self) -> bool:
        """Enqueue the inference. Return False, and enqueue nothing, if its graph was dropped, if another device is
        current, or if the device lacks memory, which the general way frees."""
        binding, executor = self._binding(), self.replay.executor
        if executor.bound is None or executor.bound[1] is not binding:
            binding = self.replay.hold()
        if binding is None:
            return False
        try:
            return self._launch(binding)
        except Exception as e:
            error = executor.launch_error(binding, e)
            if is_out_of_memory(error):
                return False
            raise error from e

    def results(self, share: bool) -> OVDict:
        """Return copies of the results, or with ``share`` views of the tensors."""
        if share:
            if not self._exposed:
                self._exposed = True
                for each in self._results:
                    each.tensor.expose()
            return OVDict(self._keys, self._data, True)
        try:
            return OVDict(self._keys, [data.copy() for data in self._data])
        except MemoryError:  # which this raises again, with the output's name
            return OVDict(self._keys, [each.output._copy(data) for each, data in zip(self._results, self._data)])


def _input_of(input_: RequestInput) -> _Input | None:
    if input_.port.element_type.is_dynamic():  # the model's type follows the values, which are never shared
        return None
    host = input_.shared_host
    if host is not None and input_.staged_source() is not None:
        return _Input(input_, None, host, host.dtype, host.shape)
    own = input_.own
    if own is None or input_._tensor is not own or not isinstance(own, StagedTensor) or not own.pinned:
        return None
    return _Input(input_, own, own._array, own._array.dtype, own._array.shape)


def _result_of(output: RequestOutput) -> _Result | None:
    tensor, host = output._tensor, output.host()
    if not isinstance(tensor, ResultTensor) or output.bound or host is None or host is not tensor._buffer:
        return None
    return _Result(output, tensor, host)
