"""The command ``ovgpu benchmark``: its steps and its output, whose lines are benchmark_app's."""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ovgpu._util.atomic_file import check_writable
from ovgpu.api.core import CompiledModel, Core
from ovgpu.api.infer_request import InferRequest
from ovgpu.cli._feed import Feed
from ovgpu.cli._inputs import is_decoder
from ovgpu.cli._ports import port_name
from ovgpu.cli.benchmark.configuration import configuration, dumped, property_text
from ovgpu.cli.benchmark.counters import print_counters, print_shares
from ovgpu.cli.benchmark.flags import IGNORED, add_flags, check_flags, given_flags
from ovgpu.cli.benchmark.inputs import Input, batch_size, describe, preprocess, tensors
from ovgpu.cli.benchmark.measure import (
    SEQUENCE_INFERENCES,
    Limits,
    Source,
    measure_async,
    measure_sync,
    peak_memory,
)
from ovgpu.cli.benchmark.report import Report
from ovgpu.cli.benchmark.results import Results
from ovgpu.ir import serialize
from ovgpu.model import Model, Output
from ovgpu.runtime.printing import bytes_text, counted
from ovgpu.runtime.trace import Trace
from ovgpu.types import Dimension

TRACED_INFERENCES = 100  # of each request, from the first one on, for --trace
DEFAULT_SECONDS = 60  # duration if neither -t nor -niter is given
STEPS = (
    "Parsing and validating input arguments",
    "Loading ovgpu",
    "Setting device configuration",
    "Reading model files",
    "Resizing model to match image sizes and given batch",
    "Configuring input of the model",
    "Loading the model to the device",
    "Querying optimal runtime parameters",
    "Creating infer requests and preparing input tensors",
    "Measuring performance",
    "Dumping statistics report",
)


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("benchmark", help="measure latency and throughput, like benchmark_app", add_help=False)
    add_flags(parser)
    parser.set_defaults(run=run)


def info(text: str = "") -> None:
    """Print an information line as benchmark_app does."""
    print(f"[ INFO ] {text}", flush=True)


def warn(text: str) -> None:
    """Print a warning as benchmark_app does."""
    print(f"[ WARNING ] {text}", flush=True)


def run(args: argparse.Namespace) -> None:
    """Run the benchmark. Raises ValueError for flags that contradict each other.

    If the benchmark fails, a report that was asked for is written all the same, with the error.
    """
    benchmark = _Benchmark(args)
    try:
        benchmark.run()
    except Exception as e:
        if args.report_type:
            benchmark.report.results.append(("error", str(e)))
            benchmark.report.write(info)
        raise


class _Benchmark:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.step_number = args, 0
        self.report = Report(args.report_type, Path(args.report_folder or "."), args.json_stats, given_flags(args.argv))
        self.compiled: CompiledModel
        self.inputs: list[Input]

    def step(self, detail: str = "") -> None:
        self.step_number += 1
        print(
            f"[Step {self.step_number}/{len(STEPS)}] {STEPS[self.step_number - 1]}{f' ({detail})' if detail else ''}",
            flush=True,
        )

    def run(self) -> None:
        args = self.args
        self.step()
        info("Parsing input parameters")
        check_flags(args)
        self.report.check_writable()
        check_writable(*(Path(file) for file in (args.dump_config, args.exec_graph_path, args.trace) if file))
        for name, reason in IGNORED.items():
            if getattr(args, name):
                warn(reason)
        self.step()
        core = Core()
        self._print_versions(core)
        self.step()
        config = configuration(args, warn)
        if args.cache_dir:
            core.set_property({"CACHE_DIR": args.cache_dir})
        self.batch = self._compile(core, config)
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
                info(f"  {key}: {property_text(self.compiled.get_property(key))}")
        self.step()
        requests, sources = self._requests()
        limits = self._limits(len(requests), len(sources[0].feeds))
        sync = args.api_type == "sync"
        limit_texts = [f"{limits.seconds * 1000:.0f} ms duration"] if limits.seconds else []
        limit_texts += [f"{limits.iterations} iterations"] if limits.iterations else []
        self.step(
            f"Start inference {args.api_type}hronously"
            + ("" if sync else f", {len(requests)} inference requests")
            + f", limits: {', '.join(limit_texts)}"
        )
        self._warm_up(requests, sources)
        trace = _Recorder(requests, args.trace, self.compiled) if args.trace else None
        result = (
            measure_sync(requests[0], sources[0], limits, trace)
            if sync
            else measure_async(requests, sources, limits, trace)
        )
        self.step()
        first = sources[0].feeds[0]
        results = Results(
            result,
            args.latency_percentile,
            self.group_names if args.pcseq else (),
            first.tokens if sources[0].stateful else 0,
            args.prompt * first.tokens // max(first.length, 1),
        )
        self._report_configuration(len(requests), limits)
        self.report.results += results.rows()
        self._write_files(config, requests)
        if trace is not None:
            trace.save()
        info(f"Percentiles:      {results.percentiles_text()}")
        info(f"Memory:           {self._memory()}")
        info(f"Execution Devices:{self.compiled.get_property('EXECUTION_DEVICES')}")
        results.print_latencies(info)

    # ---- up to the compiled model

    def _print_versions(self, core: Core) -> None:
        info("ovgpu:")
        for device, version in core.get_versions(self.args.target_device).items():
            info(f"Build ................................. {version.build_number}")
            info()
            info("Device info:")
            info(device)
            info(f"Build ................................. {version.build_number}")
        info()

    def _compile(self, core: Core, config: dict[str, Any]) -> Dimension:
        """Read, change and compile the model, or load a compiled one. Return the batch size."""
        args = self.args
        if args.model.endswith(".blob") or args.load_from_file:
            for _ in range(3):
                self.step("skipped")
            self.step()
            if args.model.endswith(".blob"):
                data = io.BytesIO(Path(args.model).read_bytes())
                self.compiled = self._timed(
                    "Import model",
                    "import model time (ms)",
                    lambda: core.import_model(data, args.target_device, config),
                )
            else:
                self.compiled = self._timed(
                    "Compile model",
                    "compile model time (ms)",
                    lambda: core.compile_model(args.model, args.target_device, config),
                )
            ports = self.compiled.inputs
            self.inputs = describe(args, ports, is_decoder(ports, self._stateful()), warn)
            return batch_size(self.inputs)
        self.step()
        info("Loading model files")
        model: Model = self._timed("Read model", "read model time (ms)", lambda: core.read_model(args.model))
        info("Original model I/O parameters:")
        _print_ports(model)
        self.step()
        self.inputs = describe(args, model.inputs, is_decoder(model.inputs, bool(model.get_sinks())), warn)
        batch = batch_size(self.inputs)
        info(f"Model batch size: {batch}")
        changed = {i: entry.shape for i, entry in enumerate(self.inputs) if entry.shape != entry.port.partial_shape}
        if changed:
            info("Reshaping model: " + ", ".join(f"'{self.inputs[i].name}': {s}" for i, s in changed.items()))
            self._timed("Reshape model", "reshape model time (ms)", lambda: model.reshape(changed))
        self.step()
        model = preprocess(model, args, self.inputs)
        _print_ports(model)
        self.step()
        self.compiled = self._timed(
            "Compile model", "compile model time (ms)", lambda: core.compile_model(model, args.target_device, config)
        )
        return batch

    def _timed(self, action: str, key: str, work: Any) -> Any:
        start = time.perf_counter()
        result = work()
        elapsed = f"{(time.perf_counter() - start) * 1000:.2f}"
        info(f"{action} took {elapsed} ms")
        self.report.results.append((key, elapsed))
        return result

    # ---- requests and their inputs

    def _stateful(self) -> bool:
        return bool(self.compiled.create_infer_request().query_state())

    def _requests(self) -> tuple[list[InferRequest], list[Source]]:
        args, compiled = self.args, self.compiled
        count = (
            1
            if args.api_type == "sync"
            else args.number_infer_requests or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        )
        by_input = tensors(args, compiled.inputs, self.inputs, warn, info)
        groups = [
            {i: arrays[n % len(arrays)] for i, arrays in enumerate(by_input)}
            for n in range(max(map(len, by_input), default=1))
        ]
        self.group_names = [
            " ".join(f"{entry.name}: {list(arrays[i].shape)}" for i, entry in enumerate(self.inputs))
            for arrays in groups
        ]
        frames = [
            max((int(entry.batch(arrays[i].shape) or 1) for i, entry in enumerate(self.inputs)), default=1)
            for arrays in groups
        ]
        if self.batch.is_dynamic and len(groups) == 1:
            self.batch = Dimension(frames[0])
        requests = [compiled.create_infer_request() for _ in range(count)]
        states = len(requests[0].query_state())
        static = all(entry.shape.is_static for entry in self.inputs)
        inference_only = args.inference_only if args.inference_only is not None else static
        feeds = [
            [Feed(compiled.inputs, arrays, bool(states), args.prompt) for arrays in groups]
            for _ in range(count if states else 1)
        ]
        same_shapes = len(set(self.group_names)) == 1
        if args.inference_only and not same_shapes:
            raise ValueError("-inference_only: inputs of several shapes have to be set for every inference")
        continues = any(feed.length for feed in feeds[0])
        fill = not inference_only or continues
        sources = [Source(request_feeds, frames, bool(states), fill) for request_feeds in feeds]
        if states:
            info(f"State: {counted(states, 'variable')}, reset after every {SEQUENCE_INFERENCES} inferences")
        self.inference_only = not sources[0].fill
        return requests, sources if states else sources * count

    def _limits(self, requests: int, groups: int) -> Limits:
        args = self.args
        seconds = args.time or (0 if args.number_iterations else DEFAULT_SECONDS)
        requested = args.number_iterations or 0
        by, basis, unit = (
            (groups, "number of input shapes", "input shapes")
            if groups > requests
            else (requests, "request number", "requests")
        )
        rounded = requested if args.api_type == "sync" else -(-requested // by) * by
        if rounded != requested:
            warn(
                f"Number of iterations was aligned by {basis} from {requested} to {rounded} using number of {unit} {by}"
            )
        return Limits(rounded, float(seconds), args.maximum_inference_rate)

    def _warm_up(self, requests: Sequence[InferRequest], sources: Sequence[Source]) -> None:
        filled = "not included" if self.inference_only else "included"
        info(
            f"Benchmarking in {'inference only' if self.inference_only else 'full'} mode "
            f"(inputs filling are {filled} in measurement loop)."
        )
        for request in requests:
            _download_results(request)
        if self.args.no_warmup:
            info("Skipping warmup inference due to -no_warmup flag")
            return
        for index, (request, source) in enumerate(zip(requests, sources)):
            request.infer(source.next(request))
            if index == 0:
                info(f"First inference took {request.latency:.2f} ms")
                self.report.results.append(("first inference time (ms)", f"{request.latency:.2f}"))
                plan = request.plan()
                info(
                    f"Plan: {counted(plan.launches, 'launch', 'launches')}, {bytes_text(plan.bytes_moved)} moved; "
                    f"arena {bytes_text(plan.arena)}, constants {bytes_text(plan.constants)}, "
                    f"state {bytes_text(plan.state)}"
                )
            if self.args.prompt:
                request.infer(source.next(request))
                source.restart(request)

    # ---- after the measurement

    def _report_configuration(self, requests: int, limits: Limits) -> None:
        args = self.args
        self.report.configuration = [
            ("topology", self.compiled.get_property("NETWORK_NAME")),
            ("target device", args.target_device),
            ("API", args.api_type),
            ("inference_only", str(self.inference_only)),
            ("precision", property_text(self.compiled.get_property("INFERENCE_PRECISION_HINT"))),
            ("batch size", str(self.batch)),
            ("number of iterations", str(limits.iterations)),
            ("number of parallel infer requests", str(requests)),
            ("duration (ms)", f"{limits.seconds * 1000:.0f}"),
        ]
        if args.number_streams:
            streams = property_text(self.compiled.get_property("NUM_STREAMS"))
            self.report.configuration.append((f"number of {args.target_device} streams", streams))

    def _write_files(self, config: dict[str, Any], requests: Sequence[InferRequest]) -> None:
        args = self.args
        if args.dump_config:
            text = json.dumps({args.target_device: dumped(config)}, indent=4)
            Path(args.dump_config).write_text(text + "\n", encoding="utf-8")
            info(f"Configuration settings were dumped to {args.dump_config}")
        if args.exec_graph_path:
            serialize(self.compiled.get_runtime_model(), args.exec_graph_path)
        counters = [r.profiling_info for r in requests] if config["PERF_COUNT"] else []
        if counters and args.perf_counts_sort:
            shares = print_shares(counters, args.perf_counts_sort, info)
            if args.report_type:
                self.report.write_shares(shares, info)
        elif counters and args.perf_counts:
            print_counters(counters, info)
        if args.report_type:
            self.report.write(info)
            if counters:
                self.report.write_counters(counters, info)

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

    def __call__(self, request_index: int) -> None:
        self.counts[request_index] += 1
        if self.counts[request_index] <= TRACED_INFERENCES:
            self.trace.add(self.requests[request_index].timeline(), request_index)

    def save(self) -> None:
        self.trace.save(self.path)
        info(
            f"Trace of {counted(sum(min(n, TRACED_INFERENCES) for n in self.counts), 'inference')} is stored to "
            f"{self.path}"
        )


def _print_ports(model: Model) -> None:
    for title, ports in (("Model inputs:", model.inputs), ("Model outputs:", model.outputs)):
        info(title)
        for port in ports:
            layer = port.tensor_port.node.friendly_name
            info(
                f"    {port_name(port)} (node: {layer}) : {port.element_type.get_type_name()} / "
                f"{_layout(port)} / {port.partial_shape}"
            )


def _layout(port: Output) -> str:
    layout = getattr(port.node, "layout", None)
    return "[...]" if layout is None or layout.empty else str(layout)


def _download_results(request: InferRequest) -> None:
    """Make inferences download all results. Large ones otherwise stay on the device until they are read."""
    for index, port in enumerate(request.model_outputs):
        if not port.element_type.is_dynamic():
            _ = request.get_output_tensor(index).array
