"""``ovgpu benchmark``: latency and throughput, with the flags and report lines of OpenVINO's benchmark_app."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.api.core import CompiledModel, Core
from ovgpu.api.infer_request import InferRequest
from ovgpu.cli._inputs import Array, Feed, fill, input_index, parse_shapes, port_name, static_shape
from ovgpu.cli.flags import IGNORED, add_flags, given_flags, layouts, requested_config
from ovgpu.cli.measure import SEQUENCE_INFERENCES, Limits, Measurement, Source, measure_async, measure_sync, peak_memory
from ovgpu.cli.report import Report, average, milliseconds, totals
from ovgpu.ir import serialize
from ovgpu.model import Model, Output
from ovgpu.runtime.printing import bytes_text, counted
from ovgpu.runtime.trace import Trace
from ovgpu.types import PartialShape, Type

TRACED_INFERENCES = 100  # of each request, from the first one on, for --trace
PERCENTILES = (90, 95, 99)
DEFAULT_SECONDS = 60  # duration if neither -t nor -niter is given
STEPS = ("Parsing and validating input arguments", "Loading ovgpu", "Setting device configuration",
         "Reading model files", "Resizing model to match image sizes and given batch", "Configuring input of the model",
         "Loading the model to the device", "Querying optimal runtime parameters",
         "Creating infer requests and preparing input tensors", "Measuring performance", "Dumping statistics report")


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("benchmark", help="measure latency and throughput, like benchmark_app",
                                 allow_abbrev=False)
    add_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def info(text: str = "") -> None:
    """Print an information line as benchmark_app does."""
    print(f"[ INFO ] {text}", flush=True)


def warn(text: str) -> None:
    """Print a warning as benchmark_app does."""
    print(f"[ WARNING ] {text}", flush=True)


def run(args: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError for flags that contradict each other."""
    _Benchmark(args).run()


class _Benchmark:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.step_number = args, 0
        self.path = args.path_to_model or args.model
        self.report = Report(args.report_type, Path(args.report_folder or "."), args.json_stats)
        self.compiled: CompiledModel

    def step(self, detail: str = "") -> None:
        self.step_number += 1
        print(f"[Step {self.step_number}/{len(STEPS)}] {STEPS[self.step_number - 1]}{f' ({detail})' if detail else ''}",
              flush=True)

    def run(self) -> None:
        args = self.args
        self.step()
        self._check()
        self.step()
        core = Core()
        self._print_versions(core)
        self.step()
        config = self._configuration(core)
        self.step()
        model = self._read(core)
        self.step()
        batch = self._reshape(model)
        self.step()
        _print_ports(model)
        self.step()
        self.compiled = _timed("Compile model", "compile model time (ms)", self.report,
                               lambda: core.compile_model(model, args.target_device, config))
        if args.number_iterations == 0:
            info("Model compiled successfully. Skipping inference due to -niter 0.")
            for _ in range(3):
                self.step("skipped")
            self.step()
            self._write_files(config, [])
            return
        self.step()
        info("Model:")
        for key in self.compiled.get_property("SUPPORTED_PROPERTIES"):
            if key != "SUPPORTED_PROPERTIES":
                info(f"  {key}: {_property_text(self.compiled.get_property(key))}")
        self.step()
        requests, sources = self._requests()
        limits = self._limits(len(requests))
        sync = self.api == "sync"
        limit_texts = [f"{limits.seconds * 1000:.0f} ms duration"] if limits.seconds else []
        limit_texts += [f"{limits.iterations} iterations"] if limits.iterations else []
        self.step(f"Start inference {self.api}hronously" + ("" if sync else f", {len(requests)} inference requests")
                  + f", limits: {', '.join(limit_texts)}")
        self._warm_up(requests, sources)
        trace = _Recorder(requests, args.trace, self.compiled) if args.trace else None
        result = (measure_sync(requests[0], sources[0], limits, trace) if sync
                  else measure_async(requests, sources, limits, trace))
        self.step()
        self._report_configuration(batch, len(requests), limits)
        self._report_results(result, batch)
        self._write_files(config, requests)
        if trace is not None:
            trace.save()
        self._print(result, batch, sources[0])

    # ---- before the measurement

    def _check(self) -> None:
        args = self.args
        info("Parsing input parameters")
        if not self.path:
            raise ValueError("no model is given: write ovgpu benchmark MODEL, or -m MODEL")
        self.report.command_line = given_flags(args, args.parser)
        for name, reason in IGNORED.items():
            if getattr(args, name):
                warn(reason)
        hint = args.perf_hint or "throughput"
        self.api = args.api_type or ("sync" if hint == "latency" or args.prompt else "async")
        if self.api == "async" and args.prompt:
            raise ValueError("--prompt needs -api sync")
        if self.api == "sync" and (args.number_infer_requests or 1) > 1:
            raise ValueError(f"-nireq {args.number_infer_requests} needs -api async")

    def _print_versions(self, core: Core) -> None:
        info("ovgpu:")
        for device, version in core.get_versions(self.args.target_device).items():
            info(f"Build ................................. {version.build_number}")
            info()
            info("Device info:")
            info(device)
            info(f"Build ................................. {version.build_number}")
        info()

    def _configuration(self, core: Core) -> dict[str, Any]:
        args = self.args
        config: dict[str, Any] = {}
        if args.load_config:
            loaded = json.loads(Path(args.load_config).read_text(encoding="utf-8"))
            for device in ("AUTO", args.target_device):
                config.update(loaded.get(device, {}))
        if not args.perf_hint and "PERFORMANCE_HINT" not in config:
            warn(f"Performance hint was not explicitly specified in command line. Device({args.target_device}) "
                 "performance hint will be set to THROUGHPUT.")
        config = {**config, **requested_config(args)}
        core.set_property(args.target_device, config)
        return config

    def _read(self, core: Core) -> Model:
        info("Loading model files")
        model: Model = _timed("Read model", "read model time (ms)", self.report, lambda: core.read_model(self.path))
        info("Original model I/O parameters:")
        _print_ports(model)
        return model

    def _reshape(self, model: Model) -> str:
        """Apply -shape and -b. Return the batch size as text."""
        args, ports = self.args, model.inputs
        shapes = {i: alternatives[0]
                  for i, alternatives in parse_shapes([args.shape] if args.shape else [], ports).items()}
        named = layouts(args.layout)
        batches = {}
        for number, port in enumerate(ports):
            shape = shapes.get(number, port.partial_shape)
            axis = _batch_axis(port, shape, named)
            if axis is not None and args.batch_size:
                shape = shapes[number] = PartialShape(shape)
                shape[axis] = args.batch_size
            if axis is not None:
                batches[number] = str(shape[axis])
        if args.batch_size and not batches:
            raise ValueError("-b: no input has a batch dimension; name it with -layout, as in [NC]")
        if shapes:
            info("Reshaping model: " + ", ".join(f"'{port_name(ports[i])}': {s}" for i, s in shapes.items()))
            _timed("Reshape model", "reshape model time (ms)", self.report, lambda: model.reshape(shapes))
        batch = next(iter(batches.values()), "1")
        info(f"Model batch size: {batch}")
        return batch

    # ---- requests and their inputs

    def _requests(self) -> tuple[list[InferRequest], list[Source]]:
        args, compiled = self.args, self.compiled
        count = 1 if self.api == "sync" else args.number_infer_requests or int(
            compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        groups = self._shape_groups()
        random = np.random.default_rng(0)
        files = self._input_arrays()
        for number, port in enumerate(compiled.inputs):
            if number not in files:
                name = port_name(port)
                kind = "random values" if port.element_type.is_real() else "ones" if "mask" in name else "zeros"
                warn(f"No input files were given for input '{name}'!. This input will be filled with {kind}!")
        requests = [compiled.create_infer_request() for _ in range(count)]
        states = len(requests[0].query_state())
        dynamic = any(p.partial_shape.is_dynamic for p in compiled.inputs)
        only = args.inference_only if args.inference_only is not None else not dynamic
        tensors = [{i: files[i] if i in files else fill(port, shapes[i], None, random)
                    for i, port in enumerate(compiled.inputs)} for shapes in groups]
        sources = [Source([Feed(compiled.inputs, arrays, bool(states), args.prompt) for arrays in tensors],
                          bool(states), not only) for _ in requests]
        if states:
            info(f"State: {counted(states, 'variable')}, reset after every {SEQUENCE_INFERENCES} inferences")
        self.inference_only = not sources[0].fill
        self.tokens, self.length = sources[0].feeds[0].tokens, max(sources[0].feeds[0].length, 1)
        return requests, sources

    def _shape_groups(self) -> list[dict[int, tuple[int, ...]]]:
        """Return the shapes of all inputs: one group, or several if -data_shape lists several."""
        ports = self.compiled.inputs
        data = parse_shapes([self.args.data_shape] if self.args.data_shape else [], ports)
        count = max(map(len, data.values()), default=1)
        files = self._input_arrays()
        return [{i: files[i].shape if i in files else
                 static_shape(port, data[i][n % len(data[i])] if i in data else self._token_shape(port), "-data_shape")
                 for i, port in enumerate(ports)} for n in range(count)]

    def _token_shape(self, port: Output) -> PartialShape | None:
        """Return the input shape for one token of one sequence, as used after a prompt; None without --prompt."""
        declared = port.partial_shape
        if not self.args.prompt or declared.rank.is_dynamic:
            return None
        return PartialShape([1 if d.is_dynamic else d for d in declared])

    def _input_arrays(self) -> dict[int, Array]:
        ports, result = self.compiled.inputs, {}
        for text in (t for group in self.args.paths_to_input for t in group):
            name, separator, path = text.partition(":")
            if not separator or Path(text).is_file():
                if len(ports) != 1:
                    raise ValueError(f"-i {text}: the model has {len(ports)} inputs, so write NAME:{text}")
                name, path = "0", text
            number = input_index(ports, name)
            result[number] = _load(Path(path), ports[number])
        return result

    def _limits(self, requests: int) -> Limits:
        args = self.args
        seconds = args.time or (0 if args.number_iterations else DEFAULT_SECONDS)
        requested = args.number_iterations or 0
        rounded = -(-requested // requests) * requests
        if rounded != requested:
            warn(f"Number of iterations was aligned by request number from {requested} to {rounded} using number of "
                 f"requests {requests}")
        return Limits(rounded, float(seconds))

    def _warm_up(self, requests: Sequence[InferRequest], sources: Sequence[Source]) -> None:
        filled = "not included" if self.inference_only else "included"
        info(f"Benchmarking in {'inference only' if self.inference_only else 'full'} mode "
             f"(inputs filling are {filled} in measurement loop).")
        for request in requests:
            _download_results(request)
        if self.args.no_warmup:
            info("Skipping warmup inference due to -no_warmup flag")
            return
        for number, (request, source) in enumerate(zip(requests, sources)):
            request.infer(source.next(request))
            if number == 0:
                info(f"First inference took {request.latency:.2f} ms")
                self.report.results.append(("first inference time (ms)", f"{request.latency:.2f}"))
                plan = request.plan()
                info(f"Plan: {counted(plan.launches, 'launch', 'launches')}, {bytes_text(plan.bytes_moved)} moved; "
                     f"arena {bytes_text(plan.arena)}, constants {bytes_text(plan.constants)}, "
                     f"state {bytes_text(plan.state)}")
            if self.args.prompt:
                request.infer(source.next(request))
                source.restart(request)

    # ---- after the measurement

    def _report_configuration(self, batch: str, requests: int, limits: Limits) -> None:
        self.report.configuration = [
            ("topology", self.compiled.get_property("NETWORK_NAME")),
            ("target device", self.args.target_device), ("API", self.api),
            ("inference_only", str(self.inference_only)),
            ("precision", _property_text(self.compiled.get_property("INFERENCE_PRECISION_HINT"))),
            ("batch size", batch),
            ("number of iterations", str(limits.iterations)), ("number of parallel infer requests", str(requests)),
            ("duration (ms)", f"{limits.seconds * 1000:.0f}")]

    def _report_results(self, result: Measurement, batch: str) -> None:
        p = self.args.latency_percentile
        self.report.results += [
            ("total execution time (ms)", f"{result.seconds * 1000:.2f}"),
            ("total number of iterations", str(result.iterations)),
            ("latency (ms)" if p == 50 else f"latency ({p} percentile) (ms)", f"{result.percentile(p):.2f}"),
            ("avg latency", f"{result.average:.2f}"), ("min latency", f"{min(result.latencies):.2f}"),
            ("max latency", f"{max(result.latencies):.2f}"),
            ("throughput", f"{result.per_second * _batch_number(batch):.2f}")]
        self.report.results += [(name, f"{rate:.2f}") for name, rate in self._rates(result)]

    def _rates(self, result: Measurement) -> list[tuple[str, float]]:
        """Return the tokens per second of prefill and decode, from the median latencies; nothing without --prompt."""
        if not result.prompts:
            return []
        sequences = self.tokens // self.length
        times = (self.args.prompt * sequences, result.prompts), (self.tokens, result.latencies)
        return [(f"{name} (tokens/s)", 1000 * tokens / float(np.median(elapsed)))
                for name, (tokens, elapsed) in zip(("prefill", "decode"), times)]

    def _write_files(self, config: dict[str, Any], requests: Sequence[InferRequest]) -> None:
        args = self.args
        if args.dump_config:
            text = json.dumps({args.target_device: {k: _property_text(v) for k, v in config.items()}}, indent=4)
            Path(args.dump_config).write_text(text + "\n", encoding="utf-8")
            info(f"Configuration settings were dumped to {args.dump_config}")
        if args.exec_graph_path:
            serialize(self.compiled.get_runtime_model(), args.exec_graph_path)
        counters = [r.profiling_info for r in requests] if config.get("PERF_COUNT") else []
        if counters and (args.perf_counts or args.perf_counts_sort):
            _print_counters(average(counters), args.perf_counts_sort)
        if args.report_type or args.report_folder:
            self.report.write(info)
            if counters:
                self.report.write_counters(counters, info)

    def _print(self, result: Measurement, batch: str, source: Source) -> None:
        p = self.args.latency_percentile
        info("Percentiles:      " + ", ".join(f"{q}%: {result.percentile(q):.3f}" for q in PERCENTILES) + " ms")
        info(f"Memory:           {self._memory()}")
        info(f"Execution Devices:{self.compiled.get_property('EXECUTION_DEVICES')}")
        info(f"Count:            {result.iterations} iterations")
        info(f"Duration:         {result.seconds * 1000:.2f} ms")
        info("Latency:")
        unit, factor = ("us", 1000) if result.average < 1 else ("ms", 1)
        info(("   Median:        " if p == 50 else f"   {p} percentile:     ")
             + f"{result.percentile(p) * factor:.2f} {unit}")
        for title, value in (("Average", result.average), ("Min", min(result.latencies)),
                             ("Max", max(result.latencies))):
            info(f"   {title + ':':<15}{value * factor:.2f} {unit}")
        info(f"Throughput:   {result.per_second * _batch_number(batch):.2f} FPS")
        if source.stateful and source.feeds[0].tokens:
            info(f"Tokens:       {result.per_second * source.feeds[0].tokens:.2f} tokens/s")
        for name, rate in self._rates(result):
            times = result.prompts if name.startswith("prefill") else result.latencies
            info(f"   {name.split()[0].capitalize() + ':':<11}{rate:.2f} tokens/s, {np.median(times):.2f} ms")

    def _memory(self) -> str:
        """Return the peak host memory and the held device memory of the process, as text."""
        usage = {"host": peak_memory(), "device": self.compiled.memory_held()}
        return ", ".join(f"{where} {bytes_text(size)}" for where, size in usage.items() if size) or "unknown"


class _Recorder:
    """Recorder of the layers' timelines in the first inferences of each request."""

    def __init__(self, requests: Sequence[InferRequest], path: str, compiled: CompiledModel) -> None:
        self.requests, self.path = requests, path
        self.trace = Trace(", ".join(compiled.get_property("EXECUTION_DEVICES")))
        self.counts = [0] * len(requests)

    def __call__(self, number: int) -> None:
        self.counts[number] += 1
        if self.counts[number] <= TRACED_INFERENCES:
            self.trace.add(self.requests[number].timeline(), number)

    def save(self) -> None:
        self.trace.save(self.path)
        info(f"Trace of {counted(sum(min(n, TRACED_INFERENCES) for n in self.counts), 'inference')} is stored to "
             f"{self.path}")


def _timed(action: str, key: str, report: Report, work: Any) -> Any:
    start = time.perf_counter()
    result = work()
    elapsed = f"{(time.perf_counter() - start) * 1000:.2f}"
    info(f"{action} took {elapsed} ms")
    report.results.append((key, elapsed))
    return result


def _print_ports(model: Model) -> None:
    for title, ports in (("Model inputs:", model.inputs), ("Model outputs:", model.outputs)):
        info(title)
        for port in ports:
            layer = port.tensor_port.node.friendly_name
            info(f"    {port_name(port)} (node: {layer}) : {port.element_type.get_type_name()} / "
                 f"{_layout(port)} / {port.partial_shape}")


def _layout(port: Output) -> str:
    layout = getattr(port.node, "layout", None)
    return "[...]" if layout is None or layout.empty else str(layout)


def _batch_axis(port: Output, shape: PartialShape, named: dict[str, str]) -> int | None:
    """Return the batch axis: the N of -layout, else axis 0 of an image (4 axes, 1 or 3 channels), else None."""
    layout = named.get(port_name(port), named.get(port.node.friendly_name, named.get("")))
    if layout is not None:
        return layout.index("N") if "N" in layout else None
    if shape.rank.is_static and len(shape) == 4 and any(shape[i] == 3 or shape[i] == 1 for i in (1, 3)):
        return 0
    return None


def _load(path: Path, port: Output) -> Array:
    if path.suffix == ".npy":
        array: Array = np.load(path, allow_pickle=False)
        return array
    if path.suffix == ".bin":
        return np.fromfile(path, port.element_type.storage).reshape(static_shape(port, None, "-shape"))
    raise ValueError(f"-i {path}: inputs are read from .npy and .bin files")


def _print_counters(infos: Sequence[Any], order: str) -> None:
    shown = infos if order in ("", "no_sort") else sorted(infos, key=lambda i: i.real_time, reverse=True)
    for i in shown:
        print(f"{i.node_name:<30.30} {i.status!s:<16} layerType: {i.node_type:<20.20} execType: {i.exec_type:<8} "
              f"realTime (ms): {milliseconds(i.real_time):<10} cpuTime (ms): {milliseconds(i.cpu_time)}")
    real, cpu = totals(infos)
    print(f"Total time:     {milliseconds(real)} milliseconds\nTotal CPU time: {milliseconds(cpu)} milliseconds\n")


def _property_text(value: Any) -> str:
    """Return a property's value as a command line or a JSON file writes it."""
    if isinstance(value, Type):
        return value.get_type_name()
    return value.name if isinstance(value, Enum) else str(value)


def _batch_number(batch: str) -> int:
    return int(batch) if batch.isdecimal() else 1


def _download_results(request: InferRequest) -> None:
    """Make inferences download all results. Large ones otherwise stay on the device until they are read."""
    for number, port in enumerate(request.model_outputs):
        if not port.element_type.is_dynamic():
            _ = request.get_output_tensor(number).array
