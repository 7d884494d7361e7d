"""Inputs of ``ovgpu benchmark``: files, shapes in turns, layouts, types, means, and compiled models."""

from __future__ import annotations

import io
import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.cli.benchmark.inputs import describe, preprocess, tensors
from tests.harness.ir import Net
from tests.runtime import models

from .conftest import Write
from .test_benchmark import benchmark, failure

Image = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), np.uint8)
DEFAULTS = {
    "shape": "",
    "data_shape": "",
    "layout": "",
    "batch_size": "",
    "mean_values": "",
    "scale_values": "",
    "input_precision": "",
    "output_precision": "",
    "input_output_precision": "",
    "paths_to_input": [],
}


def nothing(text: str) -> None:
    """Print nothing."""


def two() -> Net:
    """Build a model of images [?,3,6,7] and rows [?,4]."""
    net = Net("two")
    data, rows = net.parameter("f32", (-1, 3, 6, 7), "data"), net.parameter("f32", (-1, 4), "rows")
    net.result(net.layer("Relu", "opset1", [data], names=["pixels"]))
    net.result(net.layer("Relu", "opset1", [rows], names=["relu"]))
    return net


def read(net: Net, **flags: Any) -> tuple[list[list[Any]], ovgpu.Model, list[str]]:
    """Return the tensors of each input as the flags describe them, the changed model, and the warnings."""
    args, model = Namespace(**{**DEFAULTS, **flags}), ovgpu.read_model(*net.build())
    warnings: list[str] = []
    inputs = describe(args, model.inputs, False, warnings.append)
    model = preprocess(model, args, inputs)
    return tensors(args, model.inputs, inputs, warnings.append, nothing), model, warnings


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write a folder with four images and a text."""
    folder = tmp_path / "images"
    folder.mkdir()
    for i, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_images_fill_batches_in_turns(images: Path) -> None:
    """A folder of images is read in BGR, as benchmark_app reads it, and its other files are ignored."""
    (data, rows), _, warnings = read(two(), shape="data[3,3,6,7],rows[3,4]", paths_to_input=[[f"data:{images}"]])
    expected = PIXELS[..., ::-1].transpose(0, 3, 1, 2)
    assert len(data) == 2 and data[0].dtype == np.uint8
    np.testing.assert_array_equal(data[0], expected[[0, 1, 2]])
    np.testing.assert_array_equal(data[1], expected[[3, 0, 1]])
    assert [r.shape for r in rows] == [(3, 4)]
    assert warnings == [
        "These files are ignored: notes.txt",
        "No input files were given for input 'rows'!. This input will be filled with random values!",
    ]


def test_files_are_for_all_inputs_in_turns(images: Path, tmp_path: Path) -> None:
    for name, shape in ("0.npy", (1, 4)), ("1.npy", (2, 4)):
        np.save(tmp_path / name, np.full(shape, 7, "f4"))
    given = [str(images / "0.png"), str(tmp_path / "0.npy"), str(images / "1.png"), str(tmp_path / "1.npy")]
    (data, rows), _, warnings = read(two(), paths_to_input=[[",".join(given)]])
    assert [a.shape for a in data] == [(1, 3, 6, 7)] * 2 and [a.shape for a in rows] == [(1, 4), (2, 4)]
    assert warnings[0].startswith("Model has 2 inputs. It's recommended to use name mapping")
    again, _, _ = read(two(), paths_to_input=[[f"data:{given[0]},{given[2]},rows:{given[1]}", f"rows:{given[3]}"]])
    assert all(np.array_equal(a, b) for one, other in zip(again, (data, rows)) for a, b in zip(one, other))


def test_files_that_do_not_fit(images: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 5), "f4"))
    for text, message in (
        (f"rows:{tmp_path / 'x.npy'}", "has shape \\[2, 5\\], and input 'rows' \\[\\?,4\\]"),
        (f"row:{images}", "there is no input 'row'; the model has "),
        (f"rows:{images / 'notes.txt'}", "inputs are read from images"),
        (f"rows:{images}", "takes no images"),
    ):
        with pytest.raises(ValueError, match=message):
            read(two(), shape="data[1,3,6,7]", paths_to_input=[[text]])
    with pytest.raises(ValueError, match=r"input 'data' has the dynamic shape \[\?,3,6,7\]: .*-data_shape data\[1,3,6"):
        read(two())


def test_data_shapes() -> None:
    """Shapes without names are for the inputs in turns; named ones for their inputs; static inputs ignore them."""
    (data, rows), _, _ = read(two(), data_shape="[1,3,6,7][1,4][2,3,6,7][2,4]")
    assert [len(a) for a in data] == [len(a) for a in rows] == [1, 2]
    (data, rows), _, warnings = read(two(), shape="rows[2,4]", data_shape="data[5,3,6,7],rows[9,4]")
    assert data[0].shape[0] == 5 and rows[0].shape == (2, 4)
    assert warnings[0] == "Input 'rows' has static shape. Provided data shapes for this input will be ignored."
    for text, message in (
        ("[1,3,6,7][1,4][1,4]", "3 shapes for 2 inputs"),
        ("rows[1,5]", "does not fit"),
        ("rows[?,4]", "is dynamic"),
    ):
        with pytest.raises(ValueError, match=message):
            read(two(), data_shape=text)


def test_batch() -> None:
    (data, rows), _, warnings = read(two(), batch_size="4", layout="data[NCHW]")
    assert data[0].shape[0] == 4 and rows[0].shape[0] == 4
    assert warnings[0].startswith("Batch dimension is not specified for input 'rows'")
    with pytest.raises(ValueError, match=r"-b: no input has a batch dimension; name it with -layout, as in \[NC\]"):
        read(models.chain(), batch_size="4")


def test_types_means_and_scales() -> None:
    """Images are u8 unless -ip or -iop say otherwise; -op and -iop set the types of outputs."""
    shapes = {"shape": "data[1,3,6,7],rows[1,4]"}
    types = lambda ports: [port.element_type.get_type_name() for port in ports]
    _, model, _ = read(two(), **shapes)
    assert types(model.inputs) == ["u8", "f32"] and types(model.outputs) == ["f32", "f32"]
    _, model, _ = read(two(), **shapes, input_precision="f16", output_precision="i32")
    assert types(model.inputs) == ["f16", "f16"] and types(model.outputs) == ["i32", "i32"]
    _, model, _ = read(two(), **shapes, input_output_precision="rows:i8, relu:f16")
    assert types(model.inputs) == ["u8", "i8"] and types(model.outputs) == ["f32", "f16"]
    for text, kind in (("no:f16", RuntimeError), ("f16", ValueError), ("rows:f17", ValueError)):
        with pytest.raises(kind, match="-iop"):
            read(two(), **shapes, input_output_precision=text)
    _, model, _ = read(two(), **shapes, mean_values="[1,2,3]", scale_values="data[2,2,4]")
    images = np.full((1, 3, 6, 7), 9, np.uint8)
    result = ovgpu.compile_model(model, "CPU")([images, np.zeros((1, 4), "f4")])[0]
    np.testing.assert_array_equal(result[0, :, 0, 0], [4, 3.5, 1.5])


def test_image_information() -> None:
    """An input beside one image gets the image's height and width."""
    net = Net("detector")
    for name, shape in ("image", (1, 3, 6, 7)), ("im_info", (2, 3)):
        net.result(net.layer("Relu", "opset1", [net.parameter("f32", shape, name)]))
    (_, info), _, _ = read(net, layout="image[NCHW],im_info[NC]")
    assert info[0].tolist() == [[6, 7, 1]] * 2


# ---- whole runs


def test_groups_of_shapes(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(models.chain((-1, 3)))
    text = benchmark(
        capsys,
        path,
        "-d",
        "CPU",
        "-niter",
        "9",
        "-nireq",
        "1",
        "-pcseq",
        "-layout",
        "[NC]",
        "-data_shape",
        "[1,3][2,3]",
        "-report_type",
        "no_counters",
        "-report_folder",
        str(tmp_path),
    )
    assert (
        "[ WARNING ] Number of iterations was aligned by number of input shapes from 9 to 10 using number of input "
        "shapes 2" in text
    )
    assert re.search(r"Latency for each data shape group:\n\[ INFO \] 1\. x: \[1, 3\]\n\[ INFO \]    Median: ", text)
    assert "[ INFO ] 2. x: [2, 3]" in text
    rows = [line.split(";") for line in (tmp_path / "benchmark_report.csv").read_text().splitlines()]
    assert [value for key, *value in rows if key == "group"] == [["x: [1, 3]"], ["x: [2, 3]"]]
    duration, fps = (
        float(re.search(pattern, text)[1])  # type: ignore[index]
        for pattern in (r"Duration: +([\d.]+) ms", r"Throughput: +([\d.]+) FPS")
    )
    assert fps == pytest.approx((5 + 5 * 2) / duration * 1000, rel=0.02)
    assert "have to be set for every inference" in failure(
        capsys, path, "-niter", "2", "-data_shape", "[1,3][2,3]", "-inference_only"
    )


def test_rate(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["-api", "sync"], ["-nireq", "2"]):
        text = benchmark(capsys, write(models.chain()), "-d", "CPU", "-niter", "6", "-max_irate", "20", *flags)
        assert float(re.search(r"Throughput: +([\d.]+) FPS", text)[1]) <= 20.5  # type: ignore[index]


def test_compiled_models(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, blob = write(models.chain()), tmp_path / "chain.blob"
    stream = ovgpu.compile_model(path, "CPU").export_model()
    assert isinstance(stream, io.BytesIO)
    blob.write_bytes(stream.getvalue())
    text = benchmark(capsys, "-m", str(blob), "-d", "CPU", "-niter", "2")
    assert "Import model took" in text and text.count("(skipped)") == 3 and "NETWORK_NAME: chain" in text
    assert "the types of a compiled model cannot be changed" in failure(capsys, str(blob), "-ip", "f16")
    text = benchmark(capsys, path, "-d", "CPU", "-niter", "2", "-lfile")
    assert text.count("(skipped)") == 3 and "Read model" not in text and "Compile model took" in text
    assert "cannot be used with -lfile" in failure(capsys, path, "-lfile", "--mean_values", "[1,1,1]")


def test_values_per_device(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(models.chain())
    text = benchmark(
        capsys,
        path,
        "-d",
        "AUTO:CPU",
        "-niter",
        "2",
        "-infer_precision",
        "CPU:f32",
        "-hint",
        "none",
        "-nstreams",
        "CPU:2",
        "-nthreads",
        "1",
        "-pin",
        "NO",
    )
    assert "NUM_STREAMS: 2" in text and "INFERENCE_NUM_THREADS: 1" in text and "ENABLE_CPU_PINNING: False" in text
    assert "-nstreams GPU:2: GPU is none of the devices CPU" in failure(
        capsys, path, "-d", "CPU", "-hint", "none", "-nstreams", "GPU:2"
    )
    assert "-nstreams, -nthreads and -pin need -hint none" in failure(capsys, path, "-nthreads", "1")
    (tmp_path / "config.json").write_text(json.dumps({"CPU": {"PERF_COUNT": "YES", "NUM_STREAMS": "3"}}))
    text = benchmark(capsys, path, "-d", "CPU", "-niter", "2", "-load_config", str(tmp_path / "config.json"))
    assert "NUM_STREAMS: 3" in text and "Performance counters for CPU device is turned on." in text


def test_report_of_a_failure(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(
        capsys,
        write(models.chain((-1, 3))),
        "-report_type",
        "no_counters",
        "-json_stats",
        "-report_folder",
        str(tmp_path),
    )
    results = json.loads((tmp_path / "benchmark_report.json").read_text())["execution_results"]
    assert results["error"] and results["error"] in error


def test_help_lists_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ovgpu.cli.main(["benchmark", "-h"])
    assert stopped.value.code == 0 and re.search(r"Available target devices: .*CPU", capsys.readouterr().out)
