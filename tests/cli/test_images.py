"""Images as inputs of ``ovgpu run`` and ``ovgpu benchmark``, and the best classes of a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.cli import main
from ovgpu.cli._images import image_layout, image_tensor, parse_numbers, pixels
from ovgpu.cli._preparation import Preparation, preparation
from ovgpu.types import PartialShape
from tests.harness.ir import Net

from .conftest import Write

Image = pytest.importorskip("PIL.Image")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Write an image of 8 by 6 pixels, without losses."""
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def identity(shape: tuple[int, ...], kind: str = "f32") -> Net:
    """Build a model that returns its input, ``data``, as f32."""
    net = Net("identity")
    x = net.parameter(kind, shape, "data")
    net.result(net.layer("Convert", "opset1", [x], {"destination_type": "f32"}, ["f32"], names=["copy"]))
    return net


def shown(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[Any, str]:
    """Run a model of `identity`; return what it got, and the output of the command."""
    saved = tmp_path / "out.npz"
    code = main(["run", model, "--save", str(saved), "-d", "CPU", *argv])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    with np.load(saved) as arrays:
        return arrays["copy"], out


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((1, 3, 6, 8), (2, 0, 1)),
        ((1, 6, 8, 3), (0, 1, 2)),
        ((3, 6, 8), (2, 0, 1)),
        ((6, 8, 3), (0, 1, 2)),
        ((-1, 3, -1, -1), (2, 0, 1)),
        ((-1, -1, -1, -1), (2, 0, 1)),
        ((-1, -1, -1, 3), (0, 1, 2)),
    ],
)
@pytest.mark.parametrize("kind", ["f32", "u8", "f16"])
def test_layouts(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    kind: str,
    image: Path,
    write: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    got, text = shown(write(identity(shape, kind)), tmp_path, capsys, "--input", f"data={image}")
    expected = PIXELS.transpose(axes)
    np.testing.assert_array_equal(got, expected if len(shape) == 3 else expected[None])
    assert "image.png: 8x6, " in text and "RGB, pixels from 0 to 255 (see --mean_values and --scale_values)" in text


def test_mean_scale_and_bgr(image: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got, text = shown(
        write(identity((1, 3, 6, 8))),
        tmp_path,
        capsys,
        "--input",
        str(image),
        "--mean_values",
        "data[1,2,3]",
        "--scale_values",
        "[2,4,8]",
        "--bgr",
    )
    expected = (PIXELS[..., ::-1] - np.float32([1, 2, 3])) / np.float32([2, 4, 8])
    np.testing.assert_array_equal(got[0], expected.transpose(2, 0, 1))
    assert "NCHW, BGR, mean 1, 2, 3 and scale 2, 4, 8\n" in text


def test_gray_and_batch(image: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gray = np.asarray(Image.open(image).convert("L"))
    got, text = shown(write(identity((2, 1, 6, 8))), tmp_path, capsys, "--input", str(image))
    np.testing.assert_array_equal(got, np.stack([gray[None]] * 2))
    assert "NCHW, gray, " in text


def test_resizing() -> None:
    """Each way of resizing, against Pillow and slices."""
    picture = Image.fromarray(PIXELS)
    cases: list[tuple[Any, Any]] = [
        (Preparation(), picture.resize((4, 4), 2)),
        (Preparation(resample=0), picture.resize((4, 4), 0)),
        (Preparation(resize="crop"), picture.resize((5, 4), 2).crop((0, 0, 4, 4))),
        (Preparation(resize="crop", uncropped=6), picture.crop((2, 1, 6, 5))),
        (Preparation(resize="crop", uncropped=(5, 7)), picture.resize((7, 5), 2).crop((1, 0, 5, 4))),
    ]
    for how, expected in cases:
        np.testing.assert_array_equal(prepared(picture, how), np.asarray(expected))
    small = np.asarray(picture.resize((4, 3), 2))
    for how, top in (Preparation(resize="fit", pad=7), 0), (Preparation(resize="letterbox", pad=7), 0):
        got = prepared(picture, how)
        np.testing.assert_array_equal(got[top : top + 3], small)
        assert (got[3] == 7).all()
    wide = prepared(picture, Preparation(resize="letterbox", pad=9), (6, 4))
    np.testing.assert_array_equal(wide[1:4], small)
    assert (wide[[0, 4, 5]] == 9).all()


def prepared(picture: Any, how: Preparation, size: tuple[int, int] = (4, 4)) -> Any:
    return pixels(picture, 3, *size, how)


def port(shape: tuple[int, ...]) -> ovgpu.Output:
    return ovgpu.read_model(*identity(shape).build()).input(0)


def test_files_that_cannot_be_used(
    image: Path, tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff no image")
    model = write(identity((1, 3, 6, 8)))
    for value, message in (
        (broken, "broken.jpg cannot be read as an image"),
        ("no.jpg", "No such file"),
        ("cat.docx", "--input data=cat.docx: it takes a .npy or .bin file, an image"),
    ):
        assert main(["run", model, "--input", f"data={value}"]) == 1
        assert message in capsys.readouterr().err
    for shape, message in (((2, 3), "takes no images"), ((1, 2, 6, 8), "has 2 channels, an image has 1, 3 or 4")):
        with pytest.raises(ValueError, match=message):
            image_tensor([image], port(shape), PartialShape(list(shape)), Preparation())


def test_without_pillow(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(ValueError, match=r'images need Pillow: pip install "\.\[images\]"'):
        image_tensor([image], port((1, 3, 6, 8)), PartialShape([1, 3, 6, 8]), Preparation())


def test_layout_of_the_port() -> None:
    model = ovgpu.read_model(*identity((4, 6, 8, 4)).build())
    shape = PartialShape([4, 6, 8, 4])
    assert image_layout(model.input(0), shape) == "NHWC"
    model.inputs[0].node.layout = ovgpu.Layout("NCHW")
    assert image_layout(model.input(0), shape) == "NCHW"


def test_numbers() -> None:
    assert parse_numbers("[1,2.5]") == {"": (1, 2.5)} and parse_numbers("") == {}
    assert parse_numbers("a[1],b[2,3]") == {"a": (1,), "b": (2, 3)}
    for text in ("1,2,3", "[1,x]"):
        with pytest.raises(ValueError):
            parse_numbers(text)


# ---- what models say of images


def test_model_info(image: Path, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model API's runtime information gives mean, scale, channels, resizing and labels."""
    path = write(identity((1, 3, 8, 8)))
    model = ovgpu.read_model(path)
    info = {
        "mean_values": "10 20 30",
        "scale_values": "2.0",
        "reverse_input_channels": "YES",
        "pad_value": "114",
        "resize_type": "fit_to_window_letterbox",
        "labels": "cat dog",
    }
    for key, value in info.items():
        model.set_rt_info(value, ["model_info", key])
    ovgpu.serialize(model, tmp_path / "with_info.xml")
    got, text = shown(str(tmp_path / "with_info.xml"), tmp_path, capsys, "--input", str(image))
    assert "letterbox" in text and "mean 10, 20, 30 and scale 2 from the model's model_info" in text
    np.testing.assert_array_equal(got[0, :, 1:7], ((PIXELS - np.float32([10, 20, 30])) / 2).transpose(2, 0, 1))
    assert (got[0, :, 0, 0] == (114 - np.float32([10, 20, 30])) / 2).all()
    model.set_rt_info("YES", ["model_info", "embedded_processing"])
    assert preparation(model, tmp_path) == Preparation(resize="letterbox", pad=114, source="the model's model_info")


@pytest.mark.parametrize(
    "config, expected",
    [
        (
            {
                "do_normalize": True,
                "image_mean": [0.5] * 3,
                "image_std": [0.25] * 3,
                "rescale_factor": 1 / 256,
                "size": {"height": 20, "width": 10},
                "resample": 3,
            },
            Preparation((128,) * 3, (64,) * 3, size=(20, 10), resample=3),
        ),
        ({"do_rescale": False, "size": 24}, Preparation(size=(24, 24))),
        (
            {"rescale_factor": 0.5, "size": {"shortest_edge": 20, "longest_edge": 30}},
            Preparation((), (2,), edges=(20, 30)),
        ),
        (
            {
                "do_rescale": False,
                "do_center_crop": True,
                "crop_size": {"height": 8, "width": 8},
                "size": {"shortest_edge": 10},
            },
            Preparation(resize="crop", size=(8, 8), uncropped=10),
        ),
        (
            {"do_rescale": False, "do_center_crop": True, "crop_size": 8, "size": {"height": 9, "width": 10}},
            Preparation(resize="crop", size=(8, 8), uncropped=(9, 10)),
        ),
        (
            {"do_rescale": False, "size": {"shortest_edge": 14}, "crop_pct": 0.875},
            Preparation(resize="crop", size=(14, 14), uncropped=16),
        ),
        ({"do_rescale": False, "size": {"shortest_edge": 384}, "crop_pct": 0.875}, Preparation(size=(384, 384))),
        (
            {
                "rescale_factor": 0.5,
                "rescale_offset": True,
                "do_normalize": True,
                "image_mean": [0, 1],
                "image_std": [1, 1],
            },
            Preparation((2, 4), (2, 2)),
        ),
    ],
)
def test_transformers_configuration(config: dict[str, Any], expected: Preparation, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    model = ovgpu.read_model(*identity((1, 3, 8, 8)).build())
    found = preparation(model, tmp_path)
    assert found == Preparation(**{**vars(expected), "source": "preprocessor_config.json"})


def test_edges() -> None:
    how = Preparation(edges=(20, 30))
    assert how.size_of(40, 50) == (20, 25) and how.size_of(10, 40) == (8, 30) and Preparation().size_of(3, 4) == (3, 4)


def test_damaged_configuration(tmp_path: Path, write: Write, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 3}}')
    assert main(["run", write(identity((1, 3, 6, 8))), "--input", str(image)]) == 1
    assert "preprocessor_config.json cannot be read: KeyError: 'width'" in capsys.readouterr().err


# ---- classes


def scores(shape: tuple[int, ...], values: Any) -> Net:
    net = Net("scores")
    x = net.parameter("f32", (1,), "x")
    net.result(net.layer("Add", "opset1", [net.const(np.asarray(values, "f4").reshape(shape)), x], names=["scores"]))
    return net


def top(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["run", *argv, "--input", "zeros", "-d", "CPU"]) == 0
    return capsys.readouterr().out.partition("Best classes")[2].partition("latency")[0]


def test_best_classes(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(scores((1, 4, 1, 1), [1, 4, 3, 2]))
    rows = [line.split() for line in top(capsys, path, "--top", "2").splitlines() if "%" in line]
    assert rows == [["1", "4", "64.4%"], ["2", "3", "23.7%"]]
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "a", "1": "red fox", "2": "c", "10": "d"}}))
    assert "1   red fox       4" in top(capsys, path, "--top", "1")
    (tmp_path / "names.txt").write_text("w\nx\ny\nz\n")
    assert "1   x          4" in top(capsys, path, "--top", "1", "--labels", str(tmp_path / "names.txt"))


def test_best_classes_of_a_batch_of_probabilities(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(top(capsys, write(scores((10, 2), [[0.25, 0.75]] * 10)), "--top", "2").split())
    assert "(without 2 more rows)" in text and text.count("75.0%") == 8 and text.count("25.0%") == 8


def test_no_scores(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("integers")
    net.result(net.layer("Abs", "opset1", [net.parameter("i64", (1,), "x")]))
    assert main(["run", write(net), "--top", "1"]) == 1
    assert "--top: no output has scores" in capsys.readouterr().err
