"""Direct calls: inferences on a device that copy small arrays to pinned memory, launch one graph, and wait for it.

They are the short way of the calls that most programs make again and again, which `Session.run_directly` tries before
the three ways of `Session.run`. `DirectCall.of` takes an inference that can be replayed, and keeps what it needs in a
form that little Python checks and runs: addresses, element types, shapes, the graph, the arrays of results. At the
first mismatch, `Session.infer` sets all inputs and runs the inference in the general way.

NOTE: each line of `DirectCall.run` adds to the time of every call, and a call of a peer takes a few microseconds in
all. So the checks of inputs are written out in two places, and attributes are looked up rather than methods called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.request.downloads import ResultTensor, buffer_of
from ovgpu.request.inputs import RequestInput
from ovgpu.request.outputs import RequestOutput
from ovgpu.request.pinned import StagedTensor
from ovgpu.request.replays import Replay
from ovgpu.request.results import OutputKeys, OVDict, ViewsOfResults
from ovgpu.tensor import Tensor


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
    host: Array


class DirectCall:
    """Inference that can be run again by copies and one launch. The session then waits for it."""

    __slots__ = (
        "_binding",
        "_data",
        "_exposed",
        "_indices",
        "_inputs",
        "_keys",
        "_launch",
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
        self._data = [each.host.view(each.tensor.element_type.to_dtype()) for each in results]
        self._exposed = False
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

    def run(self, inputs: Any, share: bool) -> bool:
        """Set inputs as `RequestInput.set` does, and enqueue the inference.

        Return False, and enqueue nothing, if a tensor or a state is no longer where it was, if a value is not an array
        on the host of the right type and shape, or if the graph was dropped or another device is current. Some inputs
        may have been set then; the general way sets all of them again.
        """
        for output, tensor, host in self._results:
            if output._tensor is not tensor or output.bound or buffer_of(tensor) is not host:
                return False
        kind, taken = inputs.__class__, self._inputs
        if kind is list or kind is tuple:
            if len(inputs) != len(taken):
                return False
            for each, value in zip(taken, inputs):
                input_, own, host, dtype, shape = each
                if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                    return False
                if share:
                    if not _shared(each, value):
                        return False
                elif (
                    own is None
                    or input_._tensor is not own
                    or own._array is not host
                    or input_.shared_array is not None
                ):
                    return False
                host[...] = value
        elif inputs is None:
            for each in taken:
                if not _refreshed(each):
                    return False
        elif not self._take(inputs, share):
            return False
        transition, binding, executor = self._transition, self._binding(), self.replay.executor
        if transition is not None and not transition.match():
            return False
        if executor.bound is None or executor.bound[1] is not binding:
            binding = self.replay.hold()
        if binding is None:
            return False
        try:
            return self._launch(binding)
        except Exception as e:
            raise executor.launch_error(binding, e) from e

    def _take(self, inputs: Any, share: bool) -> bool:
        """Set inputs that are passed as a dict or as a single array, and copy what the caller shares of the others."""
        if inputs.__class__ is np.ndarray and len(self._inputs) == 1:
            inputs = {0: inputs}
        elif inputs.__class__ is not dict:
            return False
        indices, taken, passed = self._indices, self._inputs, 0
        for key, value in inputs.items():
            index = indices.get(key)
            if index is None:
                return False
            each = taken[index]
            passed |= 1 << index
            input_, own, host, dtype, shape = each
            if value.__class__ is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return False
            if share:
                if not _shared(each, value):
                    return False
            elif own is None or input_._tensor is not own or own._array is not host or input_.shared_array is not None:
                return False
            host[...] = value
        return all([passed >> index & 1 or _refreshed(each) for index, each in enumerate(taken)])

    def results(self, share: bool) -> OVDict:
        """Return copies of the results, or with ``share`` views of the tensors."""
        if not share:
            return OVDict(self._keys, [data.copy() for data in self._data])
        if not self._exposed:  # `Tensor.data` notes that the caller may hold views of the tensor's memory from now on
            self._exposed = True
            return OVDict(self._keys, [each.tensor.data for each in self._results])
        return ViewsOfResults(self._keys, self._data)


def _refreshed(each: _Input) -> bool:
    """Copy the array that the caller shares, if there is one. Return whether the graph reads what the input has."""
    input_, own, host, dtype, shape = each
    if own is not None:
        return input_._tensor is own and own._array is host and input_.shared_array is None
    source = input_.staged_source() if input_.shared_host is host else None
    if source is None or source.dtype != dtype or source.shape != shape:
        return False
    host[...] = source
    return True


def _shared(each: _Input, value: Array) -> bool:
    """Make the input read the caller's array, and return whether the graph reads its copy."""
    flags = value.flags  # an array that is read-only is copied to the input's own memory, as in OpenVINO
    if each.own is not None or each.input.shared_host is not each.host:
        return False
    if not (flags.c_contiguous and flags.aligned and flags.writeable):
        return False
    each.input._tensor, each.input.shared_array = None, value
    return True


def _input_of(input_: RequestInput) -> _Input | None:
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
