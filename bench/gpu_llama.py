"""Benchmark of a Llama decoder of 1.24 G parameters on a GPU, with weights of f16, int8 and int4, and in torch:

    python -m bench.gpu_llama --variant f16 int8 int4 --contexts 128 8192 --prefill 512 2048 --out FILE.json
    python -m bench.gpu_llama --emulated --tiny        a trial without a GPU

The shapes are those of Llama-3.2-1B, with the head tied to the embedding. Weights are stored as nncf stores them:
`int8` (u8 codes, a scale and a zero point per output), `int4` (i4, scales for groups of 128) and `int4_asym` (u4 with
zero points), where the embedding is u8. Activations and the KV cache are f16. A step begins with the token on the host
and ends with f32 logits there (wall), or is replayed on the device between events (device). The logits of one step are
compared with torch's f16, whose weights are the same, decompressed. ``--sequences`` times steps of several sequences in
slots of one batch (`ovgpu.SequenceBatcher`), after prompts of 128 tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

import ovgpu
from bench import gpu_llama_torch, gpu_measure
from bench.gpu_llama_model import LLAMA_1B, TINY, Caches, Llama, Variant, build
from bench.gpu_measure import Events, HostClock, Timer, device_seconds, host_seconds, summary
from bench.gpu_run import Ovgpu
from ovgpu.backends.cuda import rt
from tests.harness.cuda import bound

Array = NDArray[Any]
TOLERANCE = 2e-2  # of the largest logit
WARM_UP = 6  # steps after the first one: caches may move, and graphs are captured
PROMPT = 128  # tokens of each of several sequences
BATCH = 8  # steps between two events, so that the launch of the first one has little weight


class Run(Ovgpu):
    """A model on a device of ovgpu."""

    def __init__(self, model: Llama, device: str, precision: str = "f16") -> None:
        self.model, self.device = model, device
        core = ovgpu.Core()
        self.compiled = core.compile_model(core.read_model(*model.ir), device, {"INFERENCE_PRECISION_HINT": precision})
        self.timer: Timer = HostClock()
        self.flush: Callable[[], object] | None = None
        self.fresh()

    def fresh(self) -> None:
        """Start again with a new request in its initial state."""
        self.request = self.resident = self.compiled.create_infer_request()
        self.position = 0
        if self.device != "CPU":
            backend: Any = self.request._backend
            self.timer = Events(rt.cupy(), backend.stream)
        self.mask = np.ones((1, self.model.sizes.positions), np.int64)

    def fill(self, caches: Caches, length: int) -> None:
        """Fill the KV cache with ``length`` tokens."""
        for state in self.request.query_state():
            _, layer, *rest = state.name.split(".")
            part = "key" if rest[0].startswith("key") else "value"
            state.state = ovgpu.Tensor(caches.of(int(layer), part, length).astype(np.float32))
        self.position = length

    def feed(self, tokens: Array) -> Array:
        """Return the logits [1, 1, vocabulary] after tokens [1, count]."""
        first, self.position = self.position, self.position + tokens.shape[1]
        inputs = {"input_ids": tokens, "attention_mask": self.mask[:, : self.position],
                  "position_ids": np.arange(first, self.position)[None], "beam_idx": np.zeros(1, np.int32)}
        found = self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return found.to_tuple()[0]  # type: ignore[no-any-return]

    def again(self, tokens: Array) -> Array:
        """Return the logits after tokens [1, count] in an initial state."""
        self.request.reset_state()
        self.position = 0
        return self.feed(tokens)

    def infer(self, token: int = 1) -> list[Array]:
        return [self.feed(np.array([[token]]))]

    def keep_logits(self) -> None:
        """Leave the logits on the device from now on."""
        cupy = rt.cupy()
        self.request.set_output_tensor(0, ovgpu.Tensor(
            cupy.empty((1, 1, self.model.sizes.vocabulary), np.float32), shared_memory=True))

    @property
    def appended(self) -> bool:
        """Return whether the last inference appended to the caches in place."""
        steps = self.request._decode_steps
        return steps is not None and self.request._last is steps.executor


def relative(found: Array, wanted: Array) -> float:
    """Return the largest difference relative to the largest value; infinity if a value is not finite."""
    error = float(np.abs(found.astype(np.float64) - wanted).max() / np.abs(wanted).max())
    return error if math.isfinite(error) else math.inf


# ---- measurements

@dataclass
class Report:
    """Results of the items, written to a file after each."""

    out: Path | None
    deadline: float
    result: dict[str, Any] = field(default_factory=dict)

    def item(self, name: str, measure: Callable[[], dict[str, Any]], most: float = math.inf) -> dict[str, Any] | None:
        """Run a measurement for at most ``most`` seconds, and store its result or error; return None if it failed."""
        left = min(most, self.deadline - time.perf_counter())
        start, row = time.perf_counter(), dict[str, Any]()
        if left < 1:
            row = {"skipped": "no time left"}
        else:
            try:
                with limited(left):
                    row = measure()
            except Exception as failure:
                row = {"failed": f"{type(failure).__name__}: {failure}"[:2000], "trace": traceback.format_exc()[-6000:]}
        row["item_seconds"] = round(time.perf_counter() - start, 2)
        self.result.setdefault("items", {})[name] = row
        self.save()
        print(f"{name}: {_line(row)}", flush=True)
        return None if {"failed", "skipped"} & row.keys() else row

    def save(self) -> None:
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.result, indent=1) + "\n")


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when so many seconds have passed."""
    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e6), 15)  # repeated, in case the error is swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _line(row: dict[str, Any]) -> str:
    words = [f"{key} {row[key].splitlines()[0][:150]}" for key in ("failed", "skipped") if key in row]
    words += [f"{key} {row[key]['us'] / 1e3:.4g} ms" for key in ("wall", "device") if key in row]
    words += [f"{key} {row[key]:.4g}" for key in ("percent_of_copy", "tflops", "tokens_per_second", "error",
                                                  "gigabytes_on_device")
              if key in row]
    words += [f"{key} {row[key]}" for key in ("right", "appended", "finite") if key in row]
    return ", ".join([*words, f"{row['item_seconds']} s"])


class Session:
    """The measurements of one variant."""

    def __init__(self, variant: Variant, options: argparse.Namespace, report: Report, copy: float) -> None:
        self.variant, self.options, self.report, self.copy = variant, options, report, copy
        self.sizes = TINY if options.tiny else LLAMA_1B
        self.model: Llama
        self.engine: Run
        self.logits: dict[int, Array] = {}  # of the first step by context; of a prompt by its length, negated
        self.caches = Caches(self.sizes, max(options.contexts, default=1))

    def run(self) -> None:
        options, variant = self.options, self.variant
        if self.report.item(f"{variant} build", self._build) is None:
            return
        if self.report.item(f"{variant} compile", self._compile) is not None:
            for context in options.contexts:
                self.report.item(f"{variant} decode {context}", partial(self._decode, context))
            for length in options.prefill if variant in ("f16", "int4") else ():
                self.report.item(f"{variant} prefill {length}", partial(self._prefill, length))
            for count in options.sequences if variant in ("f16", "int4") else ():
                self.report.item(f"{variant} {count} sequences", partial(self._sequences, count))
            del self.engine
            free(options.torch)
        if options.torch is None:
            return
        if options.tiny:
            self.report.item(f"{variant} on the CPU", self._check)
        self._peers()

    def _build(self) -> dict[str, Any]:
        self.model = build(self.variant, self.sizes)
        return {"weight_bytes": self.model.nbytes, "variant": self.variant, "sizes": vars(self.sizes)}

    def _compile(self) -> dict[str, Any]:
        pool = rt.cupy().get_default_memory_pool()
        before = pool.used_bytes()
        self.engine = Run(self.model, self.options.device)
        return {"gigabytes_on_device": (pool.used_bytes() - before) / 1e9}

    def _decode(self, context: int) -> dict[str, Any]:
        engine, options = self.engine, self.options
        engine.fresh()
        engine.fill(self.caches, context - 1)
        start = time.perf_counter()
        self.logits[context] = logits = np.array(engine.infer()[0])
        first = time.perf_counter() - start
        for _ in range(WARM_UP):
            engine.infer()
        begin = engine.position
        wall = summary([host_seconds(engine.infer, 0, options.steps)])
        row: dict[str, Any] = {"wall": wall, "first_seconds": first, "finite": bool(np.isfinite(logits).all()),
                               "largest_logit": float(np.abs(logits).max()), "appended": engine.appended,
                               "wall_context": (begin + engine.position) / 2}
        engine.keep_logits()
        for _ in range(4):
            engine.infer()
        row["device"] = self._device(engine)
        row |= self._bytes(engine.position, row["device"]["us"]) | {"plan": engine.plan()}
        row["appended"] &= engine.appended
        return row

    def _device(self, engine: Any) -> dict[str, Any]:
        """Measure the device time of a launch."""
        count = 1 if self.options.tiny else BATCH

        def launch() -> None:
            for _ in range(count):
                engine.launch()

        return summary([[t / count for t in device_seconds(launch, engine.timer, self.options.seconds)]])

    def _bytes(self, length: float, us: float, weights: int | None = None) -> dict[str, Any]:
        """Return the bytes that a token moves, and their rate, also as a percentage of a copy's bandwidth."""
        nbytes = (self.model.nbytes if weights is None else weights) + self.model.cache_bytes(length)
        rate = nbytes / us * 1e6
        return {"bytes": nbytes, "bytes_per_second": rate, "percent_of_copy": 100 * rate / self.copy}

    def _sequences(self, count: int) -> dict[str, Any]:
        """Measure a step of so many sequences at a time, which is their next token each."""
        prompt = 4 if self.options.tiny else PROMPT
        batcher = ovgpu.SequenceBatcher(self.engine.compiled, count, max_wait_ms=100)
        sequences, position = [batcher.open() for _ in range(count)], 0

        def step(tokens: int = 1) -> list[Array]:
            nonlocal position
            first, position = position, position + tokens
            inputs = {"input_ids": np.ones((1, tokens), np.int64), "attention_mask": np.ones((1, position), np.int64),
                      "position_ids": np.arange(first, position)[None], "beam_idx": np.zeros(1, np.int32)}
            return [future.result()[0] for future in [sequence.submit(inputs) for sequence in sequences]]

        step(prompt)
        for _ in range(WARM_UP):
            logits = step()
        wall = summary([host_seconds(step, 0, self.options.steps)])
        return {"wall": wall, "tokens_per_second": count / wall["us"] * 1e6,
                "finite": all(bool(np.isfinite(x).all()) for x in logits)}

    def _tokens(self, length: int) -> Array:
        return np.random.default_rng(14).integers(0, self.sizes.vocabulary, (1, length))

    def _prefill(self, length: int) -> dict[str, Any]:
        engine, options, tokens = self.engine, self.options, self._tokens(length)
        once = partial(engine.again, tokens)
        engine.fresh()
        start = time.perf_counter()
        logits = once()
        self.logits[-length] = np.array(logits)
        row: dict[str, Any] = {"first_seconds": time.perf_counter() - start, "finite": bool(np.isfinite(logits).all())}
        for _ in range(2):
            once()
        row["wall"] = summary([host_seconds(once, options.seconds, 5)])
        row["device"] = self._device(engine)
        flops = self.model.flops(length)
        return row | {"tflops": flops / row["device"]["us"] / 1e6, "plan": engine.plan()}

    # ---- torch

    def _check(self) -> dict[str, Any]:
        """Compare the model in f32 on the CPU with torch, whose weights are decompressed."""
        context = self.options.contexts[0]
        engine = Run(self.model, "CPU", "f32")
        engine.fill(self.caches, context - 1)
        found = engine.infer()[0]
        net = gpu_llama_torch.Network(self.model, "cpu", "float32", context)
        net.fill(self.caches, context - 1)
        error = relative(found, gpu_llama_torch.Peer(net, "eager", context).infer())
        return {"error": error, "right": error < 1e-4}

    def _peers(self) -> None:
        options, variant, report = self.options, self.variant, self.report
        # With other weights than f16, torch's results are compared but not timed.
        modes = [mode for mode in options.peers if mode in ("eager", "graph")] if variant == "f16" else ["compared"]
        name = f"torch {variant}"
        with self._network(name, "float16") as net:
            for mode in modes if net else ():
                for context in options.contexts:
                    report.item(f"{name} {mode} decode {context}", partial(self._peer, net, mode, context))
                    free(options.torch)
                for length in (n for n in options.prefill if -n in self.logits):
                    report.item(f"{name} {mode} prefill {length}", partial(self._peer_prefill, net, mode, length))
                    free(options.torch)
        if variant == "int4" and "int4" in options.peers:
            mode = "eager" if options.torch == "cpu" else "graph"
            with self._network("torch int4 kernels", "bfloat16", True) as net:
                for context in options.contexts if net else ():
                    report.item(f"torch int4 kernels {mode} decode {context}",
                                partial(self._peer, net, mode, context, compare=False))

    def compiled_peers(self) -> None:
        """Time torch.compile, which takes long to compile."""
        options = self.options
        with self._network("torch f16 again", "float16") as net:
            for context in options.contexts if net else ():
                self.report.item(f"torch f16 compile decode {context}", partial(self._peer, net, "compile", context),
                                 options.compile_seconds)

    @contextmanager
    def _network(self, name: str, kind: str, int4: bool = False) -> Iterator[Any]:
        """Yield the module of torch, or None if it cannot be made; free its memory afterwards."""
        options, made = self.options, list[Any]()

        def module() -> dict[str, Any]:
            most = max([*options.contexts, *options.prefill])
            made.append(gpu_llama_torch.Network(self.model, options.torch, kind, most, int4))
            return {"weight_bytes": made[0].nbytes}

        self.report.item(f"{name} module", module)
        try:
            yield made.pop() if made else None
        finally:
            free(options.torch)

    def _peer(self, net: Any, mode: str, context: int, compare: bool = True) -> dict[str, Any]:
        options = self.options
        net.fill(self.caches, context - 1)
        peer = gpu_llama_torch.Peer(net, mode, context, compile_mode=options.compile_mode)
        logits = peer.infer()
        row: dict[str, Any] = {"finite": bool(np.isfinite(logits).all())}
        if compare and context in self.logits:
            row["error"] = relative(self.logits[context], logits)
            row["right"] = row["error"] < TOLERANCE
        if mode == "compared":
            return row
        row["wall"] = summary([host_seconds(peer.infer, 0, options.steps)])
        row["device"] = self._device(peer)
        return row | self._bytes(context, row["device"]["us"], net.nbytes)

    def _peer_prefill(self, net: Any, mode: str, length: int) -> dict[str, Any]:
        options = self.options
        peer = gpu_llama_torch.Peer(net, mode, length, self._tokens(length))
        logits = peer.infer()
        row: dict[str, Any] = {"finite": bool(np.isfinite(logits).all())}
        row["error"] = relative(self.logits[-length], logits)
        row["right"] = row["error"] < TOLERANCE
        if mode == "compared":
            return row
        row["wall"] = summary([host_seconds(peer.infer, options.seconds, 5)])
        row["device"] = self._device(peer)
        return row | {"tflops": self.model.flops(length) / row["device"]["us"] / 1e6}


def free(torch_device: str | None) -> None:
    """Free cached memory of the device."""
    gc.collect()
    rt.cupy().get_default_memory_pool().free_all_blocks()
    if torch_device == "cuda":
        import torch

        torch.cuda.empty_cache()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all requested items while there is time; update the file after each."""
    report = Report(options.out, time.perf_counter() + options.budget)
    try:
        cupy = rt.cupy()
        report.result |= {"device": gpu_measure.describe(cupy), "clocks_before": gpu_measure.clocks()}
        stream = cupy.cuda.Stream(non_blocking=True)
        copy = gpu_measure.copy_bandwidth(cupy, stream, 1 << 16 if options.tiny else 2 << 30, options.seconds)
        report.result["copy_bytes_per_second"] = copy
        print(f"copy: {copy / 1e12:.4g} TB/s", flush=True)
        free(options.torch)
        last: Session | None = None
        for variant in options.variant:
            session = Session(variant, options, report, copy)
            session.run()
            free(options.torch)
            if variant == "f16" and options.torch is not None and "compile" in options.peers:
                last = session
        if last is not None:
            last.compiled_peers()
        report.result["clocks_after"] = gpu_measure.clocks()
    finally:
        report.save()
    return report.result


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", nargs="+", choices=get_args(Variant), default=["f16", "int8", "int4"])
    parser.add_argument("--contexts", nargs="*", type=int, help="tokens in the KV cache of a decode step")
    parser.add_argument("--prefill", nargs="*", type=int, help="tokens of prompts")
    parser.add_argument("--sequences", nargs="*", type=int, default=[], help="numbers of sequences in one batch")
    parser.add_argument("--peers", nargs="*", choices=[*gpu_llama_torch.MODES, "int4"],
                        default=[*gpu_llama_torch.MODES, "int4"])
    parser.add_argument("--torch", choices=("cuda", "cpu", "none"), help="torch's device; default: cuda if usable")
    parser.add_argument("--compile-mode", default="max-autotune-no-cudagraphs")
    parser.add_argument("--compile-seconds", type=float, default=120, help="for each length that torch compiles for")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--seconds", type=float, help="per measurement")
    parser.add_argument("--steps", type=int, help="number of tokens that are timed one by one")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    options.device = "NVIDIA"
    options.torch = {None: gpu_llama_torch.device_of(), "none": None}.get(options.torch, options.torch)
    for name, usual, tiny in (("contexts", [128, 8192], [12, 40]), ("prefill", [2048], [32]), ("seconds", 0.5, 0.01),
                              ("steps", 64, 3)):
        if getattr(options, name) is None:
            setattr(options, name, tiny if options.tiny else usual)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return exit status 1 if an item failed or was wrong."""
    options = parse(arguments)
    with bound("emulator") if options.emulated else nullcontext():
        items = measure(options)["items"].values()
    return int(any("failed" in row or row.get("right") is False for row in items))


if __name__ == "__main__":
    sys.exit(main())
