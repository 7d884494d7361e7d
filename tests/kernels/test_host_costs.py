"""Costs of a warm inference on a card for the host: Python calls, launches, copies, allocations, waits. All are exact.

    python -m tests.kernels.test_host_costs        writes host_costs.json anew

A change that raises a number must say why. Frames of comprehensions do not count: they exist before Python 3.12 only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from tests.emulator import cupy_emu as cp
from tests.harness import cuda
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, decoder_inputs

COSTS = Path(__file__).with_name("host_costs.json")
PACKAGE = str(Path(ov.__file__).parent)
WARM_UP = 8
COUNTERS = (
    "graph_launches",
    "graph_kernels",
    "launches",
    "h2d_bytes",
    "d2h_bytes",
    "d2d_bytes",
    "allocs",
    "synchronizations",
)

Costs = dict[str, int]
Run = Callable[[], object]


def costs(run: Run) -> Costs:
    """Return the numbers of one run."""
    calls = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        code = frame.f_code
        calls += event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.endswith("comp>")

    cp.counters.reset()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {"python_calls": calls} | {name: getattr(cp.counters, name) for name in COUNTERS}


def small(device: str) -> tuple[Any, list[np.ndarray]]:
    """Return the compiled sum and difference of two inputs, and arrays for them."""
    net = Net()
    x, y = (net.parameter("f32", (1, 64), name) for name in "xy")
    net.result(net.layer("Add", "opset1", [x, y]))
    net.result(net.layer("Subtract", "opset1", [x, y]))
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device), [np.ones((1, 64), np.float32)] * 2


def small_call(device: str) -> Run:
    model, arrays = small(device)
    request = model.create_infer_request()
    return lambda: request.infer(arrays)


def small_compiled(device: str) -> Run:
    model, arrays = small(device)
    return lambda: model(arrays)


def small_own_tensors(device: str) -> Run:
    request = small(device)[0].create_infer_request()
    return lambda: request.infer(share_outputs=True)


def small_asynchronous(device: str) -> Run:
    model, arrays = small(device)
    request = model.create_infer_request()

    def run() -> None:
        request.start_async(arrays)
        request.wait()

    return run


def small_queued(device: str) -> Run:
    """Return a start with the next request of a queue, which ends its last inference."""
    model, arrays = small(device)
    queue = ov.AsyncInferQueue(model, 1)
    return lambda: queue.start_async(arrays)


def small_on_the_device(device: str) -> Run:
    model, arrays = small(device)
    request, on_device = model.create_infer_request(), [cp.asarray(array) for array in arrays]
    return lambda: request.infer(on_device, share_inputs=True)


def recorded(name: str, device: str, rows: int = 0) -> Run:
    """Return the first recorded call of a model, or a call with that many copies of its first row."""
    request = ov.Core().compile_model(DATA / name / "model.xml", device).create_infer_request()
    with np.load(DATA / name / "expected.npz") as arrays:
        inputs = {key.split("/")[-1]: arrays[key] for key in arrays if key.startswith("call/00/in/")}
    if rows:
        inputs = {key: np.repeat(array[:1], rows, 0) for key, array in inputs.items()}
    return lambda: request.infer(inputs)


def decode_step(device: str) -> Run:
    """Return a step of Llama, whose caches then have a token more and room for others."""
    request = ov.Core().compile_model(DATA / "llama" / "model.xml", device).create_infer_request()
    request.infer(decoder_inputs(np.ones((1, 20), int), np.ones((1, 20), int)))
    length = 20

    def run() -> None:
        nonlocal length
        length += 1
        request.infer(decoder_inputs(np.ones((1, 1), int), np.ones((1, length), int)))

    return run


def without_thread(batcher: ov.SequenceBatcher) -> Any:
    """End the thread of a batcher, and return its slots, for a thread whose calls are counted."""
    (slots,) = batcher._slots
    slots.gatherer.close()
    slots.done.wait()
    slots.gatherer.closed = False
    return slots


def decode_steps(device: str) -> Run:
    """Return steps of 64 sequences of Llama in a batch. Half of them have a token more than the others."""
    batcher = ov.SequenceBatcher(DATA / "llama" / "model.xml", 64, device)
    sequences, lengths = [batcher.open() for _ in range(64)], [0] * 64
    slots = without_thread(batcher)

    def submit(index: int) -> Any:
        count = 1 if lengths[index] else 1 + index % 2
        lengths[index] += count
        tokens = np.full((1, count), 1 + index % 8)
        return sequences[index].submit(decoder_inputs(tokens, np.ones((1, lengths[index]), int)))

    def run() -> None:
        with batcher.together():
            futures = [submit(index) for index in range(64)]
        while not futures[-1].done():
            slots.run(slots.gatherer.take())
        for future in futures:
            future.result()

    return run


def texts(device: str, count: int) -> Run:
    """Return steps of an engine with so many texts of different lengths, each of which gets its most likely token."""
    decoder = Decoder(ov.Core().read_model(DATA / "llama" / "model.xml"), device, {})
    engine, config = Engine(decoder), GenerationConfig(max_new_tokens=100, ignore_eos=True)
    raw = RawPerfMetrics(inference_durations=[0.0])
    stops = Stops(config, None)
    engine.add([Generation([1 + i % 8] * (1 + i % 5), config, stops, raw) for i in range(count)])
    engine.step()
    (batcher,) = decoder._batchers.values()
    assert batcher is not None
    slots, together = without_thread(batcher), batcher.together

    @contextmanager
    def batches() -> Iterator[None]:
        with together():
            yield
        while slots.gatherer.waiting:
            slots.run(slots.gatherer.take())

    batcher.together = batches  # type: ignore[method-assign]
    return engine.step


CASES: dict[str, Callable[[str], Run]] = {
    "small, infer": small_call,
    "small, compiled()": small_compiled,
    "small, own tensors": small_own_tensors,
    "small, start_async and wait": small_asynchronous,
    "small, queue": small_queued,
    "small, arrays on the device": small_on_the_device,
    "lstm_state": lambda device: recorded("lstm_state", device),
    "resnet": lambda device: recorded("resnet", device),
    "resnet, 64 images": lambda device: recorded("resnet", device, 64),
    "bert": lambda device: recorded("bert", device),
    "llama, a token": decode_step,
    "llama, decode of 64 sequences": decode_steps,
    "llama, a token of a text": lambda device: texts(device, 1),
    "llama, a token of each of 64 texts": lambda device: texts(device, 64),
}


def measured(case: str, device: str) -> Costs:
    run = CASES[case](device)
    for _ in range(WARM_UP):
        run()
    return costs(run)


@pytest.mark.parametrize("case", CASES)
def test_costs(case: str, emulated: str) -> None:
    assert measured(case, emulated) == json.loads(COSTS.read_text())[case]


def main() -> None:
    """Write the table."""
    with cuda.registered("emulator") as device:
        table = {case: measured(case, device) for case in CASES}
    COSTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
