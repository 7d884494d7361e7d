"""Questions that only a device answers: costs of CuPy's calls, effects of captures, speed of library kernels."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import ovgpu
from bench.gpu_measure import Events, call_seconds, device_seconds, host_seconds
from ovgpu.backends.cuda import driver_launch, rt, transfer
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Gelu7
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.fused import _product_mma
from ovgpu.ops.fused._elementwise import Chain, Part
from ovgpu.ops.fused._packed import Packed
from ovgpu.types import Type
from tests.models.recurrent import lstm_sequence

Answer = dict[str, Any]
SCALE = 'extern "C" __global__ void scale(float* x, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; ' \
        'if (i < n) x[i] *= a; }'


def answer(device: str, tiny: bool, copy_bandwidth: float) -> dict[str, Answer]:
    """Return all answers by question; a question that fails has its error as the answer, and the others go on."""
    cupy = rt.cupy()
    questions: dict[str, Callable[[Any], Answer]] = {
        "host cost of calls (us)": lambda stream: call_costs(stream, tiny),
        "allocation during capture": capture_modes,
        "nodes of a captured product": product_nodes,
        "graph launch by nodes (us)": lambda stream: graph_launches(stream, (1, 4) if tiny else (1, 10, 100, 1000)),
        "LSTM, one step (us)": lambda _: lstm_steps(device, ((2, 6), (16,)) if tiny else ((20, 220), (256, 512, 1024))),
        "matrix times vector": lambda stream: products(stream, 64 if tiny else 8192, copy_bandwidth),
        "transfers": lambda stream: transfers(stream, 1 << (14 if tiny else 28), tiny),
        "launches that begin early (us)": lambda stream: early_launches(stream, *((64, 3) if tiny else (2048, 64))),
        "a product's bias and Gelu (us)": lambda stream: epilogues(stream, *((64, (1, 4)) if tiny else
                                                                             (2048, (1, 16, 128, 2048)))),
    }
    found: dict[str, Answer] = {}
    for name, ask in questions.items():
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                found[name] = ask(stream)
        except Exception as failure:
            found[name] = {"failed": f"{type(failure).__name__}: {failure}"[:2000],
                           "trace": traceback.format_exc()[-4000:]}
    return found


def rows(answers: dict[str, Answer]) -> list[list[str]]:
    """Return the rows of a table: question, case, answer."""
    return [[question, key, f"{value:.3f}" if isinstance(value, float) else str(value)[:120]]
            for question, answer in answers.items() for key, value in answer.items() if key != "trace"]


def captured(stream: Any, *calls: Callable[[], object]) -> Any:
    """Return the graph of some calls. The capture ends even if they raise."""
    stream.begin_capture()
    try:
        for call in calls:
            call()
    except BaseException:
        _end(stream)
        raise
    return stream.end_capture()


def _end(stream: Any) -> str:
    """End a capture; return the error as text, "" if there is none."""
    try:
        stream.end_capture()
    except Exception as error:
        return f"; the capture ended with {type(error).__name__}: {error}"
    return ""


def call_costs(stream: Any, tiny: bool) -> Answer:
    """Return host microseconds per call of each kind that an inference makes."""
    cupy = rt.cupy()
    runtime = cupy.cuda.runtime
    x, y, z = (cupy.zeros(256, np.float32) for _ in range(3))
    kernel = cupy.RawModule(code=SCALE).get_function("scale")
    add = cupy.ElementwiseKernel("T x, T y", "T z", "z = x + y", "bench_add")
    args = (x, np.float32(1), np.int32(256))
    event = cupy.cuda.Event()
    a, b, c = (cupy.zeros((16, 16), np.float32) for _ in range(3))
    product = (Blas(stream).matmul(a, b, c) or [None])[0]
    host = np.zeros(256, np.float32)
    block = cupy.cuda.alloc(4096)
    kernel((1,), (256,), args, stream=stream)  # loads the kernel, which is not allowed in a capture
    graph = captured(stream, lambda: kernel((1,), (256,), args, stream=stream))
    calls: dict[str, Callable[[], object]] = {
        "RawKernel": lambda: kernel((1,), (256,), args, stream=stream),
        "ElementwiseKernel": lambda: add(x, y, z, stream=stream),
        "cuBLAS product": product,
        "memcpyAsync on the device": lambda: runtime.memcpyAsync(
            y.data.ptr, x.data.ptr, 1024, runtime.memcpyDeviceToDevice, stream.ptr),
        "memsetAsync": lambda: runtime.memsetAsync(y.data.ptr, 0, 1024, stream.ptr),
        "graph of one kernel": lambda: graph.launch(stream),
        "event": lambda: event.record(stream),
        "array in a block": lambda: cupy.ndarray((256,), np.float32, memptr=block),
        "array from the pool": lambda: cupy.empty(256, np.float32),
        "add with out=": lambda: cupy.add(x, y, out=z),
        "upload from pageable memory, 1 KB": lambda: x.set(host, stream=stream),
        "download of 1 KB, with its wait": lambda: x.get(stream=stream),
    }
    count, rounds = (3, 1) if tiny else (200, 20)
    return {name: 1e6 * call_seconds(call, stream.synchronize, rounds, count) for name, call in calls.items()}


def capture_modes(stream: Any) -> Answer:
    """Return whether memory can be allocated while a stream is captured: a block of the pool, and a new one."""
    cupy, size = rt.cupy(), 1 << 20
    found: Answer = {}
    for mode in ("Global", "ThreadLocal", "Relaxed"):
        for what in ("a block of the pool", "a new block"):
            cupy.get_default_memory_pool().free_all_blocks(stream)
            if what == "a block of the pool":
                cupy.cuda.alloc(size)  # and given back
            stream.begin_capture(getattr(cupy.cuda.runtime, f"streamCaptureMode{mode}"))
            outcome = "allowed"
            try:
                cupy.cuda.alloc(size)
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            found[f"{mode}, {what}"] = outcome + _end(stream)
    return found


def product_nodes(stream: Any) -> Answer:
    """Return the nodes of a captured product: with the handle's own workspace, as in `Blas`, and without."""
    cupy = rt.cupy()
    found: Answer = {}
    for size in (64, 1024):
        a, b, c = (cupy.zeros((size, size), np.float32) for _ in range(3))
        for own in (True, False):
            blas = Blas(stream)
            if not own:
                blas.cublas.set_stream(blas.handle, stream.ptr)  # this removes the workspace
            calls = blas.matmul(a, b, c) or []
            try:
                for call in calls:
                    call()
                outcome = ", ".join(nodes(captured(stream, *calls)))
            except Exception as error:
                outcome = f"{type(error).__name__}: {error}"
            found[f"{size} cubed, {'own' if own else 'default'} workspace"] = outcome
    return found


def nodes(graph: Any) -> list[str]:
    """Return short labels of a graph's nodes, from the text that CUDA writes for Graphviz."""
    text = graph.debug_dot_str()
    labels = re.findall(r'^\s*"?[\w.]*n(?:ode_)?\d+"?\s*\[.*?label="([^"]*)"', text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"[{}|\\]+", " ", label).strip()[:60] for label in labels]


def graph_launches(stream: Any, counts: Sequence[int]) -> Answer:
    """Return host and device time of a launch, for graphs of so many small kernels in sequence."""
    cupy = rt.cupy()
    kernel = cupy.RawModule(code=SCALE).get_function("scale")
    x = cupy.zeros(256, np.float32)
    args = (x, np.float32(1), np.int32(256))
    kernel((1,), (256,), args, stream=stream)
    found: Answer = {}
    for count in counts:
        graph = captured(stream, *[lambda: kernel((1,), (256,), args, stream=stream)] * count)
        launch = partial(graph.launch, stream)
        graph.upload(stream)
        found[f"{count}, host"] = 1e6 * call_seconds(launch, stream.synchronize, 10, 10)
        found[f"{count}, device"] = 1e6 * median(device_seconds(launch, Events(cupy, stream), 0.0))
    return found


def lstm_steps(device: str, sizes: tuple[tuple[int, int], tuple[int, ...]]) -> Answer:
    """Return the microseconds per step of an LSTMSequence: the time between two lengths over their difference."""
    (few, many), widths = sizes
    found: Answer = {}
    for hidden in widths:
        times = []
        for steps in (few, many):
            core = ovgpu.Core()
            model = core.read_model(*lstm_sequence(12, steps=steps, features=hidden, hidden=hidden))
            request = core.compile_model(model, device).create_infer_request()
            random = np.random.default_rng(1)
            inputs = [random.standard_normal(shape, np.float32)
                      for shape in ((1, steps, hidden), (1, 1, hidden), (1, 1, hidden))]
            for _ in range(3):
                request.infer(inputs)
            executor = request._last
            binding = next(reversed(executor.bindings[0].values()))
            timer = Events(rt.cupy(), request._backend.stream)
            times.append(median(device_seconds(lambda e=executor, b=binding: e.backend.replay(b), timer, 0.05)))
        found[f"{hidden} units"] = 1e6 * (times[1] - times[0]) / (many - few)
    return found


def products(stream: Any, size: int, copy_bandwidth: float) -> Answer:
    """Return the bandwidth at which cuBLAS reads the weights of a product of one row, also as a fraction of a copy's.
    Several weights take turns, so that no cache holds them."""
    cupy, blas = rt.cupy(), Blas(stream)
    found: Answer = {}
    for kind in (np.float32, np.float16):
        x, y = (cupy.zeros((1, size), kind) for _ in range(2))
        weights = [cupy.zeros((size, size), kind) for _ in range(4)]
        for rows in ("[K,N]", "[N,K] transposed"):
            calls = cycle([c for w in weights for c in blas.matmul(x, w if rows == "[K,N]" else w.T, y) or ()])
            seconds = median(device_seconds(lambda calls=calls: next(calls)(), Events(cupy, stream), 0.05))
            rate = weights[0].nbytes / seconds
            found[f"{np.dtype(kind).name}, {rows}: GB/s"] = rate / 1e9
            found[f"{np.dtype(kind).name}, {rows}: of copy"] = rate / copy_bandwidth
    return found


def early_launches(stream: Any, size: int, count: int) -> Answer:
    """Return the times of a product of one row in f16 in chains of them, as a graph: launches begin early, or when the
    one before has ended. The results must be the same, to the last bit, in all replays."""
    cupy, random = rt.cupy(), np.random.default_rng(2)
    weights = [cupy.asarray(random.standard_normal((size, size)).astype(np.float16) / np.sqrt(size).astype(np.float16))
               for _ in range(4)]
    rows = [cupy.asarray(random.standard_normal((1, size)).astype(np.float16)), cupy.zeros((1, size), np.float16)]
    first, found, results = rows[0].copy(), dict[str, Any](), []
    for way, switch in (("early", "1"), ("in order", "0")):
        with patch.dict(os.environ, {driver_launch.SWITCH: switch}):
            launcher = Launcher(stream, Blas(stream))
            launcher.copy(first, rows[0])
            for i in range(count):
                _product_mma.launch(launcher, Packed(Type.f16, size, size), _product_mma.Input((rows[i % 2],)),
                                    rows[1 - i % 2], (weights[i % 4], None, None))
            for call in launcher.calls:
                call()
            graph = captured(stream, *launcher.calls)
            found[way] = 1e6 / count * median(device_seconds(partial(graph.launch, stream), Events(cupy, stream), 0.05))
            for _ in range(100):
                graph.launch(stream)
                results.append(rows[count % 2].get(stream=stream).tobytes())
        found[f"{way}: launched early"] = sum("driver" in call.keywords for call in launcher.calls)
    found["results are equal"] = len(set(results)) == 1
    return found


def transfers(stream: Any, nbytes: int, tiny: bool) -> Answer:
    """Return GB/s of large transfers by chunk size, and microseconds of small downloads, with their waits."""
    cupy = rt.cupy()
    host, device = np.zeros(nbytes, np.uint8), cupy.zeros(nbytes, np.uint8)
    found: Answer = {}
    for chunk in ((1 << 12,) if tiny else [mb << 20 for mb in (1, 2, 4, 8, 16, 32)]):
        for what, constant, move in (("upload", "CHUNK", partial(transfer.send, host, device, stream)),
                                     ("download", "DOWNLOAD_CHUNK", partial(transfer.fetch, device, host, stream))):
            with patch.object(transfer, constant, chunk):
                seconds = median(host_seconds(move, 0.0, 3))
            found[f"{what} in chunks of {chunk >> 10} KB: GB/s"] = nbytes / seconds / 1e9
    for size in ((1 << 10,) if tiny else [kb << 10 for kb in (4, 64, 256, 1024, 4096, 16384)]):
        copy = transfer.PinnedCopy(transfer.pinned(size), device, False, stream)
        found[f"download of {size >> 10} KB to pinned memory (us)"] = 1e6 * median(host_seconds(
            lambda copy=copy: (copy(), stream.synchronize()), 0.0, 3 if tiny else 50))
    return found


def epilogues(stream: Any, size: int, rows: Sequence[int]) -> Answer:
    """Return the times of a product of so many rows with a bias, or a bias and a Gelu, in graphs: as one call of
    cuBLASLt, which may be several kernels, and as a call of cuBLAS and a kernel for the layers."""
    cupy, blas = rt.cupy(), Blas(stream)
    parts = (Part(Add(), (0, 1)), Part(Gelu7(approximation_mode="tanh"), (2,)))
    found: Answer = {}
    for kind, activation in ((np.float32, ""), (np.float16, ""), (np.float16, "gelu")):
        weights, bias = cupy.zeros((size, size), kind), cupy.zeros((size,), kind)
        for count in rows:
            x, out = (cupy.zeros((count, size), kind) for _ in range(2))
            apart = Launcher(stream, blas)
            apart.gemm(x, weights, out)
            apart.elementwise(Chain(2, (), parts if activation else parts[:1]), (out, bias), out)
            at_once = blas.lt.matmul(x, weights, out, bias, None, activation)
            name = f"{np.dtype(kind).name}, {activation or 'bias'}, {count} rows"
            for way, calls in (("at once", [] if at_once is None else [at_once]), ("apart", apart.calls)):
                for call in calls:
                    call()
                graph = captured(stream, *calls)
                launch = partial(graph.launch, stream)
                found[f"{name}, {way}"] = 1e6 * median(device_seconds(launch, Events(cupy, stream), 0.0))
                found[f"{name}, {way}: kernels"] = ", ".join(nodes(graph))
    return found
