"""Debugging settings, as environment variables and as context managers: ``with ovgpu.DEBUG(2): ...``.

    OVGPU_DEBUG=1           prints device and plan, at the first inference with a program
    OVGPU_DEBUG=2           also prints every step: time, bytes, bandwidth
    OVGPU_DEBUG=3           also prints the shapes and types of every step, and the nodes that the passes changed
    OVGPU_DEBUG=4           also prints generated code: the shape functions and the elementwise CUDA kernels
    OVGPU_STOP_AT=<layer>   ends an inference after that layer has run, by raising `Stopped` with its outputs;
                            in the body of a loop, after the layer has run for the first time
    OVGPU_NVTX=1            marks an NVTX range per step, named after the layer, for Nsight Systems and other NVIDIA
                            tools; models compiled with ``enable_profiling`` always mark them

Output goes to stderr. With any of these settings (from level 2 on with OVGPU_DEBUG), steps run one by one instead of as
a CUDA graph. With all of them off, an inference only looks up three attributes.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np

from ovgpu._util.nearest import nearest
from ovgpu.errors import Error
from ovgpu.lowering.program import Program, Step
from ovgpu.lowering.program_for import program_for
from ovgpu.model import Model, all_nodes
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import decode
from ovgpu.runtime.backend import Call, FreshMemory
from ovgpu.runtime.binding import MemoryProvider
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.plan import layers_of, plan_of
from ovgpu.runtime.profile import Profiler

T = TypeVar("T", int, str)


class EnvSetting(Generic[T]):
    """Setting with the value of an environment variable, which ``with setting(value):`` overrides.

    A text that is not of the default value's type is ignored with a warning: it must not keep programs from starting.
    """

    def __init__(self, name: str, default: T) -> None:
        self.name = name
        self._type: type[T] = type(default)
        text = os.environ.get(name, "")
        try:
            self.value: T = self._type(text) if text else default
        except ValueError:
            self.value = default
            warnings.warn(f"{name} is a number: {text!r} is ignored", RuntimeWarning, stacklevel=2)
        self._previous: list[T] = []

    def __call__(self, value: T) -> EnvSetting[T]:
        self._previous.append(self.value)
        self.value = value
        return self

    def __enter__(self) -> EnvSetting[T]:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.value = self._previous.pop()


DEBUG: EnvSetting[int] = EnvSetting("OVGPU_DEBUG", 0)
STOP_AT: EnvSetting[str] = EnvSetting("OVGPU_STOP_AT", "")
NVTX: EnvSetting[int] = EnvSetting("OVGPU_NVTX", 0)
LAST_LOGITS: EnvSetting[int] = EnvSetting("OVGPU_LAST_LOGITS", 0)


class Stopped(Error):
    """Error that ends an inference at the layer named by OVGPU_STOP_AT. State and results stay as before the inference.

    ``layer`` is the layer's name and ``outputs`` a list of copies of its outputs as NumPy arrays. The message has their
    statistics. Compare the outputs with another runtime's to find the first layer that differs.
    """

    def __init__(self, layer: str, outputs: Sequence[Array]) -> None:
        self.layer, self.outputs = layer, list(outputs)
        texts = "; ".join(f"output {i} is {statistics(x)}" for i, x in enumerate(self.outputs))
        super().__init__(f"stopped at layer '{layer}': {texts}")


def statistics(array: Array) -> str:
    """Return a text with type, shape, range and mean of an array, and the number of elements that are not finite."""
    text = f"{array.dtype.name}{list(array.shape)}"
    if not array.size or array.dtype == object:
        return text
    numbers = decode(array).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        text += f" from {finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}"
    return text + (f", {numbers.size - finite.size} not finite" if finite.size < numbers.size else "")


def run_watched(
    executor: Executor,
    profiler: Profiler | None,
    title: str,
    inputs: Sequence[Array],
    states: dict[str, Array],
    memory: MemoryProvider,
    key: Any,
    hosts: Sequence[Array] | None,
) -> list[Array]:
    """Call `Executor.run` with the printing, profiling or stopping that the settings request."""
    level, layer = DEBUG.value, STOP_AT.value
    if profiler is None and NVTX.value:
        profiler = Profiler(executor.backend.clock())  # only for its NVTX ranges
    watch = _Watch(executor, profiler, level, layer)
    try:
        observe = watch if level >= 2 or layer else profiler
        results = executor.run(inputs, states, memory, key, hosts=hosts, observe=observe)
    finally:
        if level >= 1 and executor not in _shown:
            _shown.add(executor)
            _show(executor, title, level)
    if layer:  # the layer was the last step, or its body did not run
        raise watch.stopped()
    return results


def log_passes(before: Model, after: Model) -> None:
    """Print the number of nodes of each op type that the passes removed and added."""
    old, new = (Counter(node.op.name for node in model.ops) for model in (before, after))
    removed, added = (
        ", ".join(f"{n} {name}" for name, n in sorted(c.items())) or "none" for c in (old - new, new - old)
    )
    _print(f"ovgpu: passes: {old.total()} nodes became {new.total()}; gone: {removed}; new: {added}")


_shown: WeakSet[Executor] = WeakSet()


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(executor: Executor, title: str, level: int) -> None:
    from rich.console import Console

    console = Console(stderr=True)
    console.print(f"ovgpu: {title}", markup=False, highlight=False)
    console.print(plan_of(executor))
    if level >= 4:
        for name, source in generated_code(executor).items():
            _print(f"---- {name}\n{source}")


def generated_code(executor: Executor) -> dict[str, str]:
    """Return the code generated for a program, by title: shape functions of segments, and elementwise CUDA kernels."""
    sources = {
        f"shape function of segment {n}": segment.shape_function_source
        for n, segment in enumerate(executor.program.segments)
    }
    for cached in executor.bindings:
        for binding in cached.values():
            for call in binding.flat:
                kernel: Any = getattr(call, "func", None)
                code = getattr(kernel, "code", None)
                if code is not None:
                    sources[f"kernel {code.name}"] = code.source
    for child in executor.children.values():
        sources.update({f"{name} (in a body)": source for name, source in generated_code(child).items()})
    return sources


class _Watch:
    """Observer that runs the steps of one inference, prints them, and stops after the target layer."""

    def __init__(self, executor: Executor, profiler: Profiler | None, level: int, layer: str) -> None:
        self.profiler, self.level, self.layer = profiler, level, layer
        self._attach(executor)

    def _attach(self, executor: Executor) -> None:
        self.executor = executor
        self.positions = {
            id(step): (segment_index, position)
            for segment_index, segment in enumerate(executor.program.segments)
            for position, step in enumerate(segment.steps)
        }
        self.target = _locate(executor.program, self.layer) if self.layer else None
        self.moved: dict[int, list[int]] = {}

    def __call__(self, step: Step, calls: Sequence[Call]) -> None:
        if id(step) not in self.positions:  # steps after a result of unknown rank are a separate program
            self._attach(self.executor.children["deferred"])
        segment_index, position = self.positions[id(step)]
        if self.target is not None and (segment_index, position) >= self.target[:2]:
            if self.target.inside is step:
                self._enter(step, segment_index)
            else:
                raise self.stopped()
        start = time.perf_counter()
        if self.profiler is not None:
            self.profiler(step, calls)
        else:
            for call in calls:
                call()
        if self.level >= 2:
            self.executor.backend.synchronize()
            self._report(step, time.perf_counter() - start, self._bytes(segment_index, position, step))
        if self.target is not None and (segment_index, position + 1) >= self.target[:2]:
            raise self.stopped()

    def stopped(self) -> Error:
        assert self.target is not None
        if self.target.inside is not None:
            return Error(f"cannot stop at layer '{self.layer}': the body of '{self.target.inside.name}' did not run")
        to_host = self.executor.backend.to_host
        return Stopped(self.layer, [np.array(to_host(self._array(i))) for i in self.target.values])

    def _enter(self, step: Step, segment_index: int) -> None:
        """Run a step with bodies one body at a time. Raise `Stopped` after the target layer in one of them has run."""
        executor = self.executor
        binding = next(reversed(executor.bindings[segment_index].values()))
        inputs = executor._inputs(executor.program.segments[segment_index], step, binding.symbol_values, binding.hosts)

        def run_body(model: Model, arrays: Sequence[Array]) -> Sequence[Array]:
            child = Executor(
                program_for(model, arrays, {}), executor.backend, executor.constants, executor.cancellation
            )
            watch = _Watch(child, None, 0, self.layer) if _contains(model, self.layer) else None
            return child.run(arrays, {}, FreshMemory(executor.backend), observe=watch)

        step.op.evaluate(executor.backend.xp.running(run_body), *inputs)

    def _array(self, i: int) -> Array:
        """Return a value's array. Make it if the value is a view that no step reads."""
        executor = self.executor
        if executor.arrays[i] is not None:
            return executor.arrays[i]
        assert self.target is not None
        value, segment = executor.program.values[i], executor.program.segments[self.target.segment]
        symbol_values = next(reversed(executor.bindings[self.target.segment].values())).symbol_values
        try:
            shape, strides, (offset,) = (
                tuple(segment.resolve(n, symbol_values) for n in extents)
                for extents in (value.view.shape, value.view.strides, (value.view.offset,))
            )
        except KeyError:
            raise Error(f"cannot stop at layer '{self.layer}': it is a view that no step reads") from None
        size = value.type.storage.itemsize
        root, byte_strides = executor.arrays[value.root], tuple(s * size for s in strides)
        return executor.backend.view(root, offset * size, shape, byte_strides)

    def _bytes(self, segment_index: int, position: int, step: Step) -> int:
        """Return the bytes that a step moves, from a plan that is made once per segment and after each eager step."""
        if segment_index not in self.moved or step.kind == "eager":
            self.moved[segment_index] = [
                row.bytes_moved
                for row in plan_of(self.executor).steps
                if row.segment == segment_index and row.kind not in ("view", "host")
            ]
        return self.moved[segment_index][position]

    def _report(self, step: Step, seconds: float, moved: int) -> None:
        from ovgpu.runtime.printing import bytes_text

        rate = f"{moved / seconds / 1e9:7.2f} GB/s" if seconds else ""
        line = f"{seconds * 1e6:10.1f} us {bytes_text(moved):>9} {rate}  {step.kind:7} {step.op.name:20} {step.name}"
        if self.level >= 3:
            line += f"  {self._shapes(step.inputs)} -> {self._shapes(step.outputs)}"
        _print(line)

    def _shapes(self, ids: Sequence[int]) -> str:
        values, arrays = self.executor.program.values, self.executor.arrays
        texts = ["-" if i < 0 else f"{values[i].type.get_type_name()}{list(arrays[i].shape)}" for i in ids]
        return " ".join(text.replace(", ", ",") for text in texts)


class _Target(NamedTuple):
    """Point at which a layer has run: after ``steps`` steps of a segment, or within the next step, ``inside``."""

    segment: int
    steps: int
    values: tuple[int, ...]
    inside: Step | None = None


def _contains(model: Model, layer: str) -> bool:
    return any(node.friendly_name == layer for node in all_nodes(model))


def _locate(program: Program, layer: str) -> _Target | None:
    """Return the point at which a layer has run, or None if the layer follows a result of unknown rank.

    Raises: Error if there is no such layer, or if it is fused into another step.
    """
    for view in program.views:
        if view.node.friendly_name == layer:
            return _Target(view.segment, view.position, view.outputs)
    named = tuple(v.id for v in program.values if v.name == layer)
    for segment_index, segment in reversed(list(enumerate(program.segments))):
        for position, step in reversed(list(enumerate(segment.steps))):
            if step.name == layer:
                return _Target(segment_index, position + 1, step.outputs if step.kind != "copy" else named[-1:])
    external = [v.id for v in program.values if v.name == layer and v.memory in ("input", "state", "constant")]
    if external:
        return _Target(0, 0, (external[0],))
    for segment_index, segment in enumerate(program.segments):
        for position, step in enumerate(segment.steps):
            if any(_contains(body.model, layer) for body in step.bodies):
                return _Target(segment_index, position, (), step)
    for step in program.steps:
        if any(part.name == layer for part in layers_of(step.op)):
            raise Error(
                f"cannot stop at layer '{layer}': it is one step with '{step.name}'; "
                "set OVGPU_STOP_AT before the model is compiled, which keeps layers in steps of their own"
            )
    if program.deferred is not None and _contains(program.deferred.model, layer):
        return None
    suggestions = nearest(layer, {v.name for v in program.values if v.name}, 3)
    raise Error(
        f"cannot stop at layer '{layer}': no step computes it"
        + (f"; there is {', '.join(suggestions)}" if suggestions else "")
    )
