"""``ovgpu benchmark``: benchmark_app's report lines and files, and its measurements."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from lxml import etree

import ovgpu
from ovgpu.cli import main
from ovgpu.cli._feed import Feed
from ovgpu.cli._ports import parse_shapes
from ovgpu.cli.benchmark.command import TRACED_INFERENCES
from ovgpu.cli.benchmark.inputs import layouts
from ovgpu.cli.benchmark.measure import SEQUENCE_INFERENCES, Limits, Source, measure_async, measure_sync
from tests.harness.ir import Net
from tests.runtime import models

from .conftest import Write

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
RESULTS = """\
\\[ INFO \\] Percentiles:      90%: [\\d.]+, 95%: [\\d.]+, 99%: [\\d.]+ ms
\\[ INFO \\] Memory:           host [\\d.]+ [MG]B
\\[ INFO \\] Execution Devices:\\['CPU'\\]
\\[ INFO \\] Count:            {count} iterations
\\[ INFO \\] Duration:         [\\d.]+ ms
\\[ INFO \\] Latency:
\\[ INFO \\]    {latency}[\\d.]+ (us|ms)
\\[ INFO \\]    Average:       [\\d.]+ (us|ms)
\\[ INFO \\]    Min:           [\\d.]+ (us|ms)
\\[ INFO \\]    Max:           [\\d.]+ (us|ms)
\\[ INFO \\] Throughput:   [\\d.]+ FPS
"""


def benchmark(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["benchmark", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def failure(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["benchmark", *argv]) == 1
    return capsys.readouterr().err


def image() -> Net:
    """Build a model of images [N,3,4,5] that returns their largest value."""
    net = Net("image")
    x = net.parameter("f32", (1, 3, 4, 5), "x")
    net.result(net.layer("ReduceMax", "opset1", [x, net.const([1, 2, 3])], {"keep_dims": False}, name="largest"))
    return net


@pytest.mark.parametrize("api", ["sync", "async"])
def test_report_lines(api: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(
        capsys,
        "-m",
        write(models.chain()),
        "-d",
        "CPU",
        "-niter",
        "6",
        "-api",
        api,
        "-nireq",
        "1" if api == "sync" else "2",
    )
    steps = re.findall(r"^\[Step (\d+)/11\] ([^(\n]+?)(?: \(.*\))?$", text, re.MULTILINE)
    assert steps == [(str(i), name) for i, name in enumerate(STEPS, 1)]
    assert all(re.match(r"\[(Step \d+/11|\ (INFO|WARNING) )\]", line) for line in text.splitlines())
    assert re.search(RESULTS.format(count=6, latency="Median:        ") + r"\Z", text)
    for line in (
        "[ INFO ]     x (node: x) : f32 / [...] / [2,3]",
        "[ INFO ] Model outputs:",
        "[ INFO ] Model batch size: 1",
        "[ INFO ]   NETWORK_NAME: chain",
        "[ INFO ] Benchmarking in inference only mode (inputs filling are not included in measurement loop).",
    ):
        assert line in text.splitlines(), line
    assert "Plan: 3 launches, 160 B moved; arena 64 B, constants 16 B, state 0 B" in text
    for pattern in (r"Read model took [\d.]+ ms", r"Compile model took [\d.]+ ms", r"First inference took [\d.]+ ms"):
        assert re.search(pattern, text)
    start = "Start inference synchronously" if api == "sync" else "Start inference asynchronously, 2 inference requests"
    assert f"[Step 10/11] Measuring performance ({start}, limits: 6 iterations)" in text


def test_iterations_are_aligned_to_requests(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(capsys, write(models.chain()), "-niter", "7", "-nireq", "3")
    assert (
        "[ WARNING ] Number of iterations was aligned by request number from 7 to 9 using number of requests 3"
        in text.splitlines()
    )
    assert "Count:            9 iterations" in text


def test_duration(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.perf_counter()
    text = benchmark(capsys, write(models.chain()), "-t", "1", "-hint", "latency")
    assert 1 <= time.perf_counter() - start < 20
    assert "limits: 1000 ms duration" in text and "Start inference synchronously" in text
    duration = re.search(r"Duration: +([\d.]+) ms", text)
    assert duration is not None and float(duration[1]) >= 1000


def test_throughput_counts_the_batch(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(capsys, write(image()), "-niter", "4", "-b", "8", "-no_warmup", "-latency_percentile", "90")
    assert "[ INFO ] Model batch size: 8" in text and "x (node: x) : u8 / [N,C,H,W] / [8,3,4,5]" in text
    assert re.search(RESULTS.format(count=4, latency="90 percentile:     "), text)
    assert "Skipping warmup inference due to -no_warmup flag" in text
    duration, fps = (
        float(re.search(pattern, text)[1])  # type: ignore[index]
        for pattern in (r"Duration: +([\d.]+) ms", r"Throughput: +([\d.]+) FPS")
    )
    assert fps == pytest.approx(4 * 8 / duration * 1000, rel=0.01)


def test_layout_names_the_batch(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(models.chain())
    assert "x (node: x) : f32 / [...] / [7,3]" in benchmark(capsys, path, "-niter", "1", "-b", "7", "-layout", "x[NC]")
    assert "-b: no input has a batch dimension" in failure(capsys, path, "-niter", "1", "-b", "7")


def test_shapes(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(models.chain((-1, 3)))
    assert "the shape of its data with -data_shape x[1,3]" in failure(capsys, path, "-niter", "1")
    assert "Reshaping model: 'x': [5,3]" in benchmark(capsys, path, "-niter", "1", "-shape", "x[5,3]")
    text = benchmark(capsys, path, "-niter", "4", "-data_shape", "[1,3][2,3]")
    assert "Benchmarking in full mode (inputs filling are included in measurement loop)." in text


def test_input_files(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), "f4"))
    np.zeros((2, 3), "f4").tofile(tmp_path / "x.bin")
    path = write(models.chain())
    for argument in (f"{tmp_path / 'x.npy'}", f"x:{tmp_path / 'x.bin'}"):
        assert "No input files were given" not in benchmark(capsys, path, "-niter", "1", "-i", argument)
    assert "No such file or directory: 'cat.jpg'" in failure(capsys, path, "-niter", "1", "-i", "x:cat.jpg")
    assert "inputs are read from images (.bmp, " in failure(capsys, path, "-niter", "1", "-i", "x:cat.docx")


def test_flags_without_effect_warn(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(capsys, write(models.chain()), "-niter", "1", "-extensions", "lib.so", "-c", "kernels.xml")
    assert len(re.findall(r"\[ WARNING \] -(extensions|c) has no effect", text)) == 2


def test_compiling_only(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(capsys, write(models.chain()), "-niter", "0")
    assert text.count("(skipped)") == 3 and "Throughput" not in text


@pytest.mark.parametrize("as_json", [False, True])
def test_reports(as_json: bool, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "reports"
    flags = ["-json_stats"] if as_json else []
    text = benchmark(
        capsys,
        write(models.chain()),
        "-niter",
        "4",
        "-nireq",
        "2",
        "-pc",
        "-report_type",
        "average_counters",
        "-report_folder",
        str(folder),
        "-infer_precision",
        "CPU:f32",
        *flags,
    )
    assert re.search(r"^relu +Status.EXECUTED +layerType: Relu +execType: bound +realTime \(ms\): ", text, re.MULTILINE)
    suffix = "json" if as_json else "csv"
    report = (folder / f"benchmark_report.{suffix}").read_text(encoding="utf-8")
    counters = (folder / f"benchmark_average_counters_report.{suffix}").read_text(encoding="utf-8")
    if as_json:
        document = json.loads(report)
        assert document["cmd_options"]["-niter"] == "4"
        setup, results = document["configuration_setup"], document["execution_results"]
        nodes = json.loads(counters)["avg_performance"]["nodes"]
        assert [n["name"] for n in nodes] == ["add", "relu", "mul"]
    else:
        sections = [dict(line.split(";", 1) for line in part.splitlines()[1:]) for part in report.split("\n\n")[:3]]
        setup, results = sections[1:]
        lines = counters.splitlines()
        assert lines[0] == "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)"
        assert [line.split(";")[0] for line in lines[1:]] == ["add", "relu", "mul", "Total"]
    assert setup == {
        "topology": "chain",
        "target device": "AUTO",
        "API": "async",
        "inference_only": "True",
        "precision": "f32",
        "batch size": "1",
        "number of iterations": "4",
        "number of parallel infer requests": "2",
        "duration (ms)": "0",
    }
    assert list(results) == [
        "read model time (ms)",
        "compile model time (ms)",
        "first inference time (ms)",
        "total execution time (ms)",
        "total number of iterations",
        "latency (ms)",
        "avg latency",
        "min latency",
        "max latency",
        "throughput",
    ]
    assert results["total number of iterations"] == "4"


def test_configuration_files(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, first, second = write(models.chain()), tmp_path / "first.json", tmp_path / "second.json"
    cache, graph = str(tmp_path / "cache"), tmp_path / "graph.xml"
    text = benchmark(
        capsys, path, "-d", "CPU", "-niter", "1", "-hint", "latency", "-cdir", cache, "-dump_config", str(first)
    )
    assert f"CACHE_DIR: {cache}" in text
    assert json.loads(first.read_text()) == {"CPU": {"PERFORMANCE_HINT": "LATENCY", "PERF_COUNT": "NO"}}
    text = benchmark(
        capsys,
        path,
        "-d",
        "CPU",
        "-niter",
        "1",
        "-hint",
        "none",
        "-load_config",
        str(first),
        "-dump_config",
        str(second),
        "-exec_graph_path",
        str(graph),
    )
    assert "Turn on performance counters for CPU device since an execution graph is written." in text
    assert "PERFORMANCE_HINT: LATENCY" in text
    assert json.loads(second.read_text()) == {"CPU": {"PERFORMANCE_HINT": "LATENCY", "PERF_COUNT": "YES"}}
    layers = {layer.get("name"): layer for layer in etree.parse(graph).iter("layer")}
    assert layers["x"].get("type") == "Input" and layers["relu"].get("type") == "Relu"
    data = layers["relu"].find("data")
    assert data is not None and int(data.get("execTimeMcs", "")) >= 0 and data.get("outputPrecisions") == "f32"


def test_tokens_of_a_stateful_decoder(decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(capsys, decoder, "-niter", str(SEQUENCE_INFERENCES + 5), "-data_shape", "[1,2]")
    assert f"[ INFO ] State: 1 variable, reset after every {SEQUENCE_INFERENCES} inferences" in text
    fps, tokens = (
        float(re.search(pattern, text)[1])  # type: ignore[index]
        for pattern in (r"Throughput: +([\d.]+) FPS", r"Tokens: +([\d.]+) tokens/s")
    )
    assert tokens == pytest.approx(2 * fps, rel=0.01)


def test_prompts_of_a_stateful_decoder(decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = benchmark(
        capsys,
        decoder,
        "-d",
        "CPU",
        "-niter",
        str(SEQUENCE_INFERENCES + 5),
        "--prompt",
        "7",
        "-report_type",
        "no_counters",
        "-report_folder",
        str(tmp_path),
        "-json_stats",
    )
    results = json.loads((tmp_path / "benchmark_report.json").read_text())["execution_results"]
    assert results["total number of iterations"] == str(SEQUENCE_INFERENCES + 5)
    for name, title, tokens in (("prefill", "Prefill", 7), ("decode", "Decode", 1)):
        rate, took = re.search(title + r": +([\d.]+) tokens/s, ([\d.]+) ms", text).groups()  # type: ignore[union-attr]
        assert results[f"{name} (tokens/s)"] == rate
        assert float(rate) == pytest.approx(1000 * tokens / float(took), rel=0.2)


def test_prompts_are_for_decoders(write: Write, decoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = "--prompt", "7", "-niter", "1", "-d", "CPU"
    assert "--prompt is for models with state" in failure(capsys, write(models.chain()), *usual)
    assert "--prompt needs -api sync" in failure(capsys, decoder, *usual, "-api", "async")


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no model is given" in failure(capsys)
    assert "-nireq 2 needs -api async" in failure(capsys, "m.xml", "-api", "sync", "-nireq", "2")
    for argv in (
        ["m.xml", "-niter", "-1"],
        ["m.xml", "-t", "0"],
        ["m.xml", "-latency_percentile", "101"],
        ["m.xml", "-hint", "speed"],
        ["m.xml", "-no_such_flag"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["benchmark", *argv])
        assert stopped.value.code == 2
        capsys.readouterr()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_trace(api: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, count = tmp_path / "trace.json", 1 if api == "sync" else 2
    text = benchmark(
        capsys,
        write(models.chain()),
        "-d",
        "CPU",
        "-niter",
        "6",
        "-api",
        api,
        "-nireq",
        str(count),
        "--trace",
        str(path),
    )
    assert f"[ INFO ] Trace of 6 inferences is stored to {path}" in text
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["tid"] for e in events} == set(range(count))
    for pid in (0, 1):  # host and device
        assert [e["name"] for e in events if e["pid"] == pid].count("relu") == 6


def test_a_trace_keeps_the_first_inferences(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    text = benchmark(
        capsys,
        write(models.chain()),
        "-d",
        "CPU",
        "-niter",
        str(TRACED_INFERENCES + 9),
        "-api",
        "sync",
        "--trace",
        str(path),
    )
    assert f"Trace of {TRACED_INFERENCES} inferences" in text


def test_on_the_emulated_device(
    emulated: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several requests run at once; device memory and times per layer are reported."""
    trace = tmp_path / "trace.json"
    for flags in ([], ["-pc", "--trace", str(trace)]):
        text = benchmark(capsys, write(models.chain()), "-d", emulated, "-niter", "8", "-nireq", "2", *flags)
        assert f"Execution Devices:['{emulated}']" in text and "Count:            8 iterations" in text
        assert re.search(r"Memory: +host [\d.]+ [MG]B, device [\d.]+ [KMG]?B\n", text)
        assert re.search(r"Throughput: +[\d.]+ FPS", text)
    assert re.search(r"Status.EXECUTED +layerType: \w+ +execType: bound +realTime \(ms\): 0*\.?0*[1-9]", text)
    titles = [e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "process_name"]
    assert titles == ["host", f"device {emulated}"]


# ---- measuring


def requests(net: Net, count: int) -> tuple[list[ovgpu.InferRequest], list[Source]]:
    compiled = models.compiled(net)
    found = [compiled.create_infer_request() for _ in range(count)]
    arrays = {0: np.ones(tuple(compiled.input(0).shape), "f4")}
    stateful = bool(found[0].query_state())
    return found, [Source([Feed(compiled.inputs, arrays, stateful)], [1], stateful, True) for _ in found]


def test_measurement_counts_all_inferences() -> None:
    some, sources = requests(models.stateful(), 3)
    found = measure_async(some, sources, Limits(iterations=12))
    assert found.iterations == 12 and len(found.latencies) == 12 and found.seconds > 0
    assert sum(r.query_state()[0].state.data[0, 0] for r in some) == 12  # each inference adds one
    assert min(found.latencies) <= found.percentile(50) <= max(found.latencies)
    alone = measure_sync(some[0], sources[0], Limits(iterations=2))
    assert alone.iterations == 2


def test_state_is_reset_after_a_sequence() -> None:
    (request,), (source,) = requests(models.stateful(), 1)
    measure_sync(request, source, Limits(iterations=SEQUENCE_INFERENCES + 3))
    assert request.query_state()[0].state.data[0, 0] == 3


def test_a_failing_inference_ends_the_measurement() -> None:
    some, sources = requests(models.chain((2, 3)), 2)
    sources[1].feeds[0].arrays[0] = np.ones((9, 9), "f4")
    with pytest.raises(ovgpu.Error, match="shape"):  # in the thread that starts it
        measure_async(some, sources, Limits(iterations=10))
    some, sources = requests(models.chain((2, 3)), 2)
    with ovgpu.STOP_AT("relu"), pytest.raises(ovgpu.debug.Stopped):  # in the thread that runs it
        measure_async(some, sources, Limits(iterations=10))


def test_limits() -> None:
    both = Limits(10, 2.0)
    assert not both.reached(9, 1.9) and both.reached(10, 0) and both.reached(0, 2)
    assert both.fraction(5, 0.5) == 0.5 and both.fraction(1, 1.9) == 0.95 and both.fraction(99, 9) == 1


# ---- parsing of flags


def test_parse_shapes() -> None:
    ports = models.compiled(models.chain((-1, 3))).inputs
    for text in ("[1,3]", "x=[1,3]", "x[1,3]", " x [1,3]"):
        assert [str(s) for s in parse_shapes([text], ports)[0]] == ["[1,3]"], text
    assert [str(s) for s in parse_shapes(["x[1,3][?,3]"], ports)[0]] == ["[1,3]", "[?,3]"]
    assert parse_shapes([], ports) == {}
    assert parse_shapes(["[1,2,3]"], ports) and parse_shapes(["[1,3]", "x[2,3]"], ports)[0] == [[2, 3]]
    with pytest.raises(ValueError, match="cannot read the shape"):
        parse_shapes(["x"], ports)


def test_shapes_of_a_language_model() -> None:
    net = Net()
    for name, shape in (("input_ids", (-1, -1)), ("attention_mask", (-1, -1)), ("beam_idx", (-1,)), ("scale", (3,))):
        net.result(net.layer("Abs", "opset1", [net.parameter("i64", shape, name)]))
    ports = models.compiled(net).inputs
    for text in ("input_ids[2,5]", "[2,5]"):
        assert {i: [str(s) for s in some] for i, some in parse_shapes([text], ports).items()} == {
            0: ["[2,5]"],
            1: ["[2,5]"],
            2: ["[2]"],
        }


def test_layouts() -> None:
    assert layouts("a[NCHW],b[NC]") == {"a": "NCHW", "b": "NC"} and layouts("[NC]") == {"": "NC"} and layouts("") == {}
    with pytest.raises(ValueError, match="cannot read the layout"):
        layouts("NCHW")
