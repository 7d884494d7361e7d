"""Processor time that the host spends on a call, on a card whose graphs do nothing.

    python bench/host.py --before TREE [--rounds 7] [--out bench/results]

TREE is a checkout of the build to compare with. The card is the emulator with graphs whose launch returns at once, so
that what is measured is the Python of a call. The peers compute the model, which adds two vectors of 64 floats, on the
CPU. For large arrays it is the wall time, as several threads copy, beside one copy by NumPy. Steps of sequences are
those of a SequenceBatcher, submitted together, beside a request for each sequence. They are steps of a decoder of four
layers, whose sequences have different lengths, and of an LSTM. Each measurement is a process of its own, which takes
turns with the others. Needs onnxruntime and openvino.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TREE = Path(os.environ.get("BENCH_TREE", Path(__file__).resolve().parent.parent))
if __name__ == "__main__" and "--worker" in sys.argv:
    sys.path.insert(0, str(TREE))  # workers measure its ovgpu
else:
    import engines

SHAPE = (1, 64)
IMAGES = (64, 3, 224, 224)
CALLS = 2000  # per repetition
REPETITIONS = 7
SEQUENCES = (64, 1)
FRAME, HIDDEN = 64, 128  # of the LSTM
PROMPTS = 32  # the decoder's prompts have 1 to so many tokens

Worker = Callable[[], dict[str, float]]


def microseconds(run: Callable[[], object], calls: int = CALLS) -> float:
    """Return this process's processor time per call of ``run``, in microseconds: the median of some repetitions."""
    for _ in range(calls // 10):
        run()
    times = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        for _ in range(calls):
            run()
        times.append((time.process_time() - start) / calls)
    return 1e6 * statistics.median(times)


def wall_microseconds(run: Callable[[], object], calls: int = 8) -> float:
    """Return the wall time per call of ``run``, in microseconds: the median of some calls after the first few."""
    times = []
    for _ in range(4 + calls):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[4:])


def small() -> tuple[bytes, bytes]:
    """Return a model with two inputs and two outputs as IR: their sum, and their difference."""
    from tests.harness.ir import Net

    net = Net("small")
    x, y = (net.parameter("f32", SHAPE, name) for name in "xy")
    net.result(net.layer("Add", "opset1", [x, y], names=["sum"]))
    net.result(net.layer("Subtract", "opset1", [x, y], names=["difference"]))
    return net.build()


def feeds() -> list[np.ndarray]:
    """Return an array for each input of `small`."""
    return [np.linspace(begin, 1, SHAPE[1], dtype=np.float32).reshape(SHAPE) for begin in (-1, 0)]


def queued(ov: Any, compiled: Any, arrays: list[np.ndarray]) -> dict[str, float]:
    """Measure an inference of an AsyncInferQueue of 1, 4 and 8 requests, without a callback and with one."""
    times = {}
    for callback in ("", ", callback"):
        for count in (1, 4, 8):
            queue = ov.AsyncInferQueue(compiled, count)
            if callback:
                queue.set_callback(lambda request, item: None)

            def run(queue: Any = queue) -> None:
                for _ in range(64):
                    queue.start_async(arrays)
                queue.wait_all()

            times[f"queue of {count}{callback}"] = microseconds(run, CALLS // 64) / 64
    return times


def large() -> tuple[bytes, bytes]:
    """Return a model whose input is a batch of 64 images in f32, as IR. It returns a part of the first one."""
    from tests.harness.ir import Net

    net = Net("large")
    x = net.parameter("f32", IMAGES, "x")
    part = net.layer("Slice", "opset8", [x, *(net.const(np.array([n, n])) for n in (0, 1, 1)), net.const(np.arange(2))])
    net.result(net.layer("Relu", "opset1", [part], names=["part"]))
    return net.build()


def large_arrays(ov: Any, card: str) -> dict[str, float]:
    """Measure the wall time of inferences with large arrays, on a card whose copies between host and device do nothing.

    Call it when graphs do nothing.
    """
    from tests.emulator import memory

    copy, core, idle = memory.copy, ov.Core(), False
    memory.copy = lambda *args: None if idle else copy(*args)
    compiled = core.compile_model(core.read_model(*large()), card)
    request, x, idle = compiled.create_infer_request(), np.ones(IMAGES, np.float32), True
    figures = {
        "38.5 MB copied": wall_microseconds(lambda: request.infer([x])),
        "38.5 MB shared": wall_microseconds(lambda: request.infer([x], share_inputs=True)),
    }
    memory.copy = copy
    return figures


def lstm() -> tuple[bytes, bytes]:
    """Return an LSTM cell with states, for one frame at a time, as IR."""
    from tests.harness.ir import Net

    net, random = Net("lstm"), np.random.default_rng(0)
    x, *states = net.parameter("f32", (1, FRAME), "x"), *(net.read_value(n, "f32", (1, HIDDEN)) for n in "hc")
    shapes = (4 * HIDDEN, FRAME), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,)
    weights = [net.const(random.uniform(-0.1, 0.1, shape).astype(np.float32)) for shape in shapes]
    cell = net.layer("LSTMCell", "opset4", [x, *states, *weights], {"hidden_size": HIDDEN}, outputs=2)
    for name, value in zip("hc", cell):
        net.assign(name, value)
    net.result(net.layer("Relu", "opset1", [cell[0]], names=["y"]))
    return net.build()


def decoder() -> tuple[bytes, bytes]:
    """Return a decoder of four layers, as Llama's, as IR."""
    from tests.harness.models.transformer import Sizes, llama

    return llama(0, Sizes(layers=4, width=32, heads=4, inner=64, vocabulary=256, positions=4096)).ir


def frame(sequence: int, step: int) -> dict[str, np.ndarray]:
    """Return the inputs of a step of `lstm`."""
    return {"x": np.full((1, FRAME), sequence, np.float32)}


def tokens(sequence: int, step: int) -> dict[str, np.ndarray]:
    """Return the inputs of a step of `decoder`: a prompt, or one token."""
    prompt = 1 + sequence * 7 % PROMPTS
    past, count = (prompt + step - 1, 1) if step else (0, prompt)
    return {
        "input_ids": (np.arange(past, past + count)[None] * 31 + sequence) % 256,
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def step_microseconds(run: Callable[[list[Any]], object], inputs: Callable[[int, int], Any], count: int) -> float:
    """Return the processor time of a step of ``count`` sequences, in microseconds: the median of some steps after the
    first few."""
    times = []
    for step in range(220):
        given = [inputs(sequence, step) for sequence in range(count)]
        start = time.process_time()
        run(given)
        times.append(time.process_time() - start)
    return 1e6 * statistics.median(times[20:])


def batched_steps(ov: Any, compiled: Any, count: int) -> Callable[[list[Any]], object]:
    """Return a function that runs a step of sequences in a batch."""
    batcher = ov.SequenceBatcher(compiled, count, max_wait_ms=5)
    sequences = [batcher.open() for _ in range(count)]

    def run(given: list[Any]) -> None:
        with batcher.together():
            futures = [sequence.submit(inputs) for sequence, inputs in zip(sequences, given)]
        for future in futures:
            future.result()

    return run if count > 1 else lambda given: sequences[0].infer(given[0])


def single_steps(ov: Any, compiled: Any, count: int) -> Callable[[list[Any]], object]:
    """Return a function that runs a step of sequences, each in a request of its own."""
    requests = [compiled.create_infer_request() for _ in range(count)]
    return lambda given: [request.infer(inputs) for request, inputs in zip(requests, given)]


def sequence_steps(ov: Any, card: str, made: Callable[..., Any]) -> dict[str, float]:
    """Measure steps of sequences, which `batched_steps` or `single_steps` runs, on a card that does nothing."""
    from tests.emulator import kernel, stream

    stream.Graph.launch = kernel.KernelNode.run = lambda *args: None  # type: ignore[method-assign]
    figures = {}
    for name, model, inputs in (("decoder", decoder, tokens), ("LSTM", lstm, frame)):
        core = ov.Core()
        compiled = core.compile_model(core.read_model(*model()), card)
        for count in SEQUENCES:
            call = f"step of {count} sequence{'s' if count > 1 else ''}, {name}"
            figures[call] = step_microseconds(made(ov, compiled, count), inputs, count)
    return figures


def sequences_in_requests() -> dict[str, float]:
    """Measure steps of sequences that have a request each."""
    from tests.harness import cuda

    with cuda.registered("emulator") as card:
        import ovgpu as ov

        return sequence_steps(ov, card, single_steps)


def numpy_copies() -> dict[str, float]:
    """Measure a copy by one call of NumPy, of the size of `large`'s input."""
    source = np.ones(IMAGES, np.float32)
    target = np.empty_like(source)
    return {
        "copyto of 38.5 MB": wall_microseconds(lambda: np.copyto(target, source)),
    }


def ovgpu_calls() -> dict[str, float]:
    """Measure the ways to call ovgpu on the card."""
    from tests.emulator import stream
    from tests.harness import cuda

    with cuda.registered("emulator") as card:
        import ovgpu as ov

        launch, idle = stream.Graph.launch, False
        stream.Graph.launch = lambda *args: None if idle else launch(*args)  # type: ignore[method-assign]
        core, arrays = ov.Core(), feeds()
        compiled = core.compile_model(core.read_model(*small()), card)
        request = compiled.create_infer_request()
        for _ in range(4):  # the second inference is captured
            expected = [np.copy(value) for value in request.infer(arrays).values()]
            compiled(arrays)
        np.testing.assert_array_equal(expected, [sum(arrays), arrays[0] - arrays[1]])
        idle = True

        def own_tensors() -> Any:
            own = compiled.create_infer_request()
            for tensor, array in zip(own.input_tensors, arrays):
                tensor.data[:] = array
            return own

        def asynchronous() -> None:
            request.start_async(arrays)
            request.wait()

        own, shared = own_tensors(), compiled.create_infer_request()
        return (
            {
                "infer": microseconds(lambda: request.infer(arrays)),
                "infer, by name": microseconds(lambda: request.infer({"x": arrays[0], "y": arrays[1]})),
                "compiled()": microseconds(lambda: compiled(arrays)),
                "share_inputs": microseconds(lambda: shared.infer(arrays, share_inputs=True)),
                "own tensors": microseconds(lambda: own.infer(share_outputs=True)),
                "start_async, wait": microseconds(asynchronous),
            }
            | queued(ov, compiled, arrays)
            | large_arrays(ov, card)
            | sequence_steps(ov, card, batched_steps)
        )


def onnxruntime_calls() -> dict[str, float]:
    """Measure ONNX Runtime's CPU provider: `run`, and a run with bound inputs and outputs."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    def tensors(*names: str) -> list[Any]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in names]

    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Sub", ["x", "y"], ["difference"])]
    graph = helper.make_graph(nodes, "small", tensors("x", "y"), tensors("sum", "difference"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = dict(zip("xy", feeds()))
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("sum")
    binding.bind_output("difference")
    return {
        "run": microseconds(lambda: session.run(None, feed)),
        "IOBinding": microseconds(lambda: session.run_with_iobinding(binding)),
    }


def openvino_calls() -> dict[str, float]:
    """Measure OpenVINO's CPU plugin."""
    import openvino as ov

    core, arrays = ov.Core(), feeds()
    xml, weights = small()
    model = core.read_model(model=xml, weights=weights)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()

    def asynchronous() -> None:
        request.start_async(arrays)
        request.wait()

    return {
        "infer": microseconds(lambda: request.infer(arrays)),
        "compiled()": microseconds(lambda: compiled(arrays)),
        "start_async, wait": microseconds(asynchronous),
    } | queued(ov, compiled, arrays)


WORKERS: dict[str, Worker] = {
    "before": ovgpu_calls,
    "ovgpu": ovgpu_calls,
    "a request each": sequences_in_requests,
    "numpy": numpy_copies,
    "onnxruntime": onnxruntime_calls,
    "openvino": openvino_calls,
}


def work(name: str, before: Path) -> dict[str, float]:
    """Return the figures of one worker, which runs in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(engines.OVERRIDES)}
    environment["BENCH_TREE"] = str(before if name == "before" else TREE)
    command = [sys.executable, __file__, "--worker", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def rows_of(figures: dict[str, dict[str, float]]) -> list[Sequence[str]]:
    """Return the rows of the table: a call of ovgpu before and now, and its peers."""
    peers = {
        "infer": ("onnxruntime", "run"),
        "infer, by name": ("onnxruntime", "run"),
        "compiled()": ("onnxruntime", "run"),
        "share_inputs": ("onnxruntime", "run"),
        "own tensors": ("onnxruntime", "IOBinding"),
        "start_async, wait": ("openvino", "start_async, wait"),
    }
    peers |= {
        "38.5 MB copied": ("numpy", "copyto of 38.5 MB"),
        "38.5 MB shared": ("numpy", "copyto of 38.5 MB"),
    }
    peers |= {call: ("openvino", call) for call in figures["ovgpu"] if call.startswith("queue")}
    peers |= {call: ("a request each", call) for call in figures["a request each"]}
    rows = []
    for call, now in figures["ovgpu"].items():
        before, (peer, peers_call) = figures["before"][call], peers[call]
        other = figures[peer][peers_call]
        rows.append(
            [
                call,
                f"{before:.1f}",
                f"{now:.1f}",
                f"{now / before:.2f}",
                f"{peer}: {other:.1f}" if peers_call == call else f"{peer} {peers_call}: {other:.1f}",
                f"{now / other:.2f}",
            ]
        )
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the build to compare with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=TREE / "bench" / "results")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(WORKERS[options.worker]()))
        return
    if options.before is None:
        parser.error("--before names a checkout of the build to compare with")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WORKERS}
    for _ in range(options.rounds):
        for name in WORKERS:
            runs[name].append(work(name, options.before.resolve()))
    figures = engines.medians(runs)
    heads = ["Call", "before, µs", "now, µs", "now / before", "peer, µs", "now / peer"]
    title = "Processor time of the host for a call of a small model, on a card whose graphs do nothing"
    engines.report(options.out, "host", title, heads, rows_of(figures), {"rounds": options.rounds, "us": figures})


if __name__ == "__main__":
    main()
