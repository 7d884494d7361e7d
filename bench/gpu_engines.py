"""Workloads on a device of ovgpu, ready to be timed: see `engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ovgpu
from bench.gpu_measure import Events, Flush, HostClock, Timer
from bench.networks.llama import Caches
from bench.workloads import PROMPT, Workload
from ovgpu.backends.cuda import rt

Array = NDArray[Any]
WARM_UP = 8  # inferences; graphs are captured at the second with the same buffers, and states alternate between two


def compiled(workload: Workload, device: str) -> Any:
    """Return the compiled model of a workload."""
    core = ovgpu.Core()
    return core.compile_model(core.read_model(*workload.ir), device, dict(workload.config))


class Engine:
    """A workload with inputs and outputs on the host (`infer`), and on the device (`call`, `launch`).

    ``request`` makes inferences of the host's arrays, ``resident`` those whose work `launch` repeats.
    """

    def __init__(self, workload: Workload, device: str, model: Any = None) -> None:
        self.workload, self.device = workload, device
        self.compiled = model or compiled(workload, device)
        self.request = self.resident = self.compiled.create_infer_request()
        self.timer: Timer = HostClock()
        self.flush: Callable[[], object] | None = None
        self.prepare()
        if device != "CPU":
            cupy, stream = rt.cupy(), self.resident._session.backend.stream  # each request has a stream of its own
            self.timer = Events(cupy, stream)
            self.flush = Flush(cupy, stream) if workload.bandwidth else None

    def prepare(self) -> None:
        """Run until graphs are captured, for host arrays and for arrays on the device."""
        outputs = self.infer()
        if self.device == "CPU":
            return
        self.resident, cupy = self.compiled.create_infer_request(), rt.cupy()
        for number, array in enumerate(self.workload.inputs.values()):
            self.resident.set_input_tensor(number, ovgpu.Tensor(cupy.asarray(array), shared_memory=True))
        for number, array in enumerate(outputs):
            empty = cupy.empty(array.shape, array.dtype)
            self.resident.set_output_tensor(number, ovgpu.Tensor(empty, shared_memory=True))
        for _ in range(WARM_UP):
            self.infer()
            self.call()

    def begin(self) -> None:
        """Start from the initial state."""
        self.request.reset_state()

    def infer(self) -> list[Array]:
        """Run an inference from host arrays to host arrays."""
        return self._run(self.workload.inputs)

    def _run(self, inputs: Any) -> list[Array]:
        found = self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return [*found.to_tuple()]

    def call(self) -> None:
        """Run an inference with inputs and outputs on the device, and wait for it."""
        self.resident.infer()

    def keep_outputs(self) -> None:
        """Leave outputs on the device from now on, so that `launch` has none of their transfers."""

    def launch(self) -> None:
        """Repeat the work of the last inference without waiting."""
        executor = self.resident._session.last
        for segment, cached in zip(executor.program.segments, executor.bindings):
            binding = next(reversed(cached.values()))
            if not executor.backend.launch(binding):
                executor.run_flat(segment, binding)
            if segment.steps and segment.steps[-1].kind == "eager":
                executor._run_eager(segment.steps[-1], binding)

    def figures(self) -> dict[str, Any]:
        """Return launches and memory of an inference."""
        plan = self.request.plan()
        return {
            "host_launches": plan.launches,
            "calls": sum(step.calls or 0 for step in plan.steps),
            "eager_steps": plan.count("eager"),
            "arena_bytes": plan.arena,
        }


class Decoder(Engine):
    """A language model. An inference is the next token, after a cache that `begin` fills with random numbers."""

    def prepare(self) -> None:
        text = self.workload.text
        assert text is not None
        self.text, self.position = text, 0
        self.caches = Caches(text.sizes, max(text.context, 1))
        self.mask = np.ones((1, text.sizes.positions), np.int64)
        self.begin()
        self.warm()

    def warm(self) -> None:
        for _ in range(WARM_UP):
            self.infer()

    def begin(self) -> None:
        """Reset the state, and fill it with all tokens of the context but one."""
        super().begin()
        self.position = 0
        if self.text.context:
            for state in self.request.query_state():
                _, layer, part, *_ = state.name.split(".")
                rows = self.caches.of(int(layer), "key" if part.startswith("key") else "value", self.text.context - 1)
                state.state = ovgpu.Tensor(rows.astype(np.float32))
            self.position = self.text.context - 1

    def feed(self, tokens: Array) -> list[Array]:
        """Return the logits after tokens [1, count]."""
        first, self.position = self.position, self.position + tokens.shape[1]
        return self._run(
            {
                "input_ids": tokens,
                "attention_mask": self.mask[:, : self.position],
                "position_ids": np.arange(first, self.position)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )

    def infer(self) -> list[Array]:
        return self.feed(np.array([[1]]))

    def keep_outputs(self) -> None:
        for number, array in enumerate(self.infer()):
            empty = rt.cupy().empty(array.shape, array.dtype)
            self.request.set_output_tensor(number, ovgpu.Tensor(empty, shared_memory=True))
        self.warm()

    call = None  # type: ignore[assignment]  # inputs of a step come from the host

    def figures(self) -> dict[str, Any]:
        """Return also whether the last inference appended to the caches in place."""
        steps = self.request._session._decode_steps
        appended = steps is not None and self.request._session.last is steps.executor
        return {**super().figures(), "appended": appended, "position": self.position}


class Prompt(Decoder):
    """A language model, of which an inference is a prompt in an initial state."""

    def infer(self) -> list[Array]:
        self.begin()
        return self.feed(prompt(self.text.sizes.vocabulary, self.text.prompt))


class Sequences(Decoder):
    """Several sequences in slots of one batch (`ovgpu.SequenceBatcher`), of which an inference is a token each."""

    launch = None  # type: ignore[assignment]  # steps are the batcher's

    def prepare(self) -> None:
        assert self.workload.text is not None
        self.text, self.position = self.workload.text, 0
        count = self.text.sequences
        self.batcher = ovgpu.SequenceBatcher(self.compiled, count, max_wait_ms=100)
        self.sequences = [self.batcher.open() for _ in range(count)]
        self._step(min(PROMPT, self.text.sizes.positions // 8))
        self.warm()

    def begin(self) -> None:
        """Go on from where the sequences are."""

    def infer(self) -> list[Array]:
        return self._step(1)

    def _step(self, tokens: int) -> list[Array]:
        first, self.position = self.position, self.position + tokens
        inputs = {
            "input_ids": np.ones((1, tokens), np.int64),
            "attention_mask": np.ones((1, self.position), np.int64),
            "position_ids": np.arange(first, self.position)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return [future.result()[0] for future in [sequence.submit(inputs) for sequence in self.sequences]]

    def figures(self) -> dict[str, Any]:
        return {}


def prompt(vocabulary: int, length: int) -> Array:
    """Return random tokens [1, length]."""
    return np.random.default_rng(14).integers(0, vocabulary, (1, length))


def engine(workload: Workload, device: str, model: Any = None) -> Engine:
    """Return the engine of a workload, whose compiled model can be given; graphs are captured."""
    text = workload.text
    kind = Engine if text is None else Sequences if text.sequences else Prompt if text.prompt else Decoder
    return kind(workload, device, model)


def results(found: Any, workload: Workload) -> list[Array]:
    """Return copies of the outputs of an inference, or of the first few from the initial state."""
    found.begin()
    return [np.array(y) for _ in range(3 if workload.stateful else 1) for y in found.infer()]


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Return the largest difference relative to the largest value, of the worst output; NaN if shapes differ, or values
    are not finite."""
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return float("nan")
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, wanted)]
    return float(np.max([np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in pairs]))  # NaN, if one is
