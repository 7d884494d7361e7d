"""Folders that ``ovgpu triton`` writes: their files, and the configuration as Triton's own protobuf reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

import ovgpu as ov
from ovgpu import cli
from ovgpu.integrations.triton.config import Name, text
from tests.batching import nets
from tests.batching.test_dynamic_batcher import perceptron
from tests.harness.ir import Net
from tests.harness.models.transformer import Sizes, llama
from tests.integrations.triton.instance import parsed


def written(model: ov.Model, folder: Path, *options: str) -> Path:
    """Write the folder of a model called M, and return it."""
    ov.save_model(model, folder / "M.xml", compress_to_fp16=False)
    assert not cli.main(["triton", str(folder / "repository"), str(folder / "M.xml"), *options])
    return folder / "repository/M"


def config(model: ov.Model, folder: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(
        parsed(written(model, folder, *options)), preserving_proto_field_name=True
    )
    return found


def frames(rows: int = -1) -> ov.Model:
    """relu of x [rows, any, 3] in bf16, of flags and of texts."""
    net = Net("frames")
    x, flags, words = (
        net.parameter(kind, shape, name)
        for kind, shape, name in (
            ("bf16", (rows, -1, 3), "x"),
            ("boolean", (rows,), "flags"),
            ("string", (rows, 2), "words"),
        )
    )
    net.result(net.layer("Relu", "opset1", [x], names=["y"]))
    net.result(net.layer("LogicalNot", "opset1", [flags], names=["no"]))
    net.result(
        net.layer(
            "Reshape",
            "opset1",
            [words, net.const(np.array([-1, 2], np.int64))],
            {"special_zero": False},
            names=["same"],
        )
    )
    return nets.model(net)


def test_rows_in_batches(tmp_path: Path) -> None:
    """The batch axis is not in dims, an empty shape becomes one element, and dynamic shapes may be mixed."""
    assert config(frames(), tmp_path, "--max-batch-size", "16", "--max-wait-ms", "0.5") == {
        "name": "M",
        "backend": "python",
        "max_batch_size": 16,
        "input": [
            {"name": "x", "data_type": "TYPE_BF16", "dims": ["-1", "3"], "allow_ragged_batch": True},
            {"name": "flags", "data_type": "TYPE_BOOL", "dims": ["1"], "reshape": {}},
            {"name": "words", "data_type": "TYPE_STRING", "dims": ["2"]},
        ],
        "output": [
            {"name": "y", "data_type": "TYPE_BF16", "dims": ["-1", "3"]},
            {"name": "no", "data_type": "TYPE_BOOL", "dims": ["1"], "reshape": {}},
            {"name": "same", "data_type": "TYPE_STRING", "dims": ["2"]},
        ],
        "dynamic_batching": {"max_queue_delay_microseconds": "500"},
        "instance_group": [{"count": 1}],  # KIND_AUTO
    }


def test_sequences_in_slots(tmp_path: Path) -> None:
    assert config(
        nets.sums(),
        tmp_path,
        "--max-sequences",
        "8",
        "--idle-seconds",
        "9",
        "--precision",
        "f16",
        "--device",
        "MULTI:NVIDIA.0,NVIDIA.2",
    ) == {
        "name": "M",
        "backend": "python",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["8"]}],
        "output": [
            {"name": "y", "data_type": "TYPE_FP32", "dims": ["8"]},
            {"name": "steps", "data_type": "TYPE_INT64", "dims": ["1"], "reshape": {}},
        ],
        "sequence_batching": {
            "max_sequence_idle_microseconds": "9000000",
            "oldest": {"max_candidate_sequences": 8, "max_queue_delay_microseconds": "2000"},
        },
        "instance_group": [{"count": 1, "kind": "KIND_GPU", "gpus": [0, 2]}],
        "parameters": {"INFERENCE_PRECISION_HINT": {"string_value": "f16"}},
    }


def test_decoupled_steps(tmp_path: Path) -> None:
    """Requests have a row for each step, responses one row."""
    found = config(nets.switched(), tmp_path, "--decoupled", "--device", "CPU")
    assert found["model_transaction_policy"] == {"decoupled": True}
    assert "max_batch_size" not in found
    assert found["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "8"]},
        {"name": "gain", "data_type": "TYPE_FP32", "dims": ["1"]},
    ]
    assert found["output"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": ["1", "8"]}]
    assert found["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]


def test_optional_beams(tmp_path: Path) -> None:
    """A decoder's prompts have any length; its beams can be left out."""
    model = ov.Core().read_model(*llama(0, Sizes(1, 32, 2, 64, 50, 64, 2)).ir)
    found = config(model, tmp_path)
    assert found["max_batch_size"] == 64
    inputs = {fields.pop("name"): fields for fields in found["input"]}
    assert inputs["beam_idx"] == {"data_type": "TYPE_INT32", "dims": ["1"], "reshape": {}, "optional": True}
    assert inputs["input_ids"] == {"data_type": "TYPE_INT64", "dims": ["-1"], "allow_ragged_batch": True}


@pytest.mark.parametrize("make", [perceptron, nets.time_major], ids=["shared", "second_axis"])
def test_no_batches_of_triton(make: Any, tmp_path: Path) -> None:
    """An input that all rows share, and a batch on the second axis: Triton has no such batches."""
    found = config(make(), tmp_path)
    assert "max_batch_size" not in found and "dynamic_batching" not in found
    assert found["input"][0]["dims"] == {perceptron: ["1", "8"], nets.time_major: ["4", "1", "8"]}[make]
    assert ("sequence_batching" in found) == (make is nets.time_major)
    assert found.get("parameters", {}) == ({} if make is nets.time_major else {"batching": {"string_value": "no"}})


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second version is written beside the first. Nothing is overwritten, and nothing is left of a failure."""
    folder = written(nets.sums(), tmp_path)
    assert capsys.readouterr().out == f"{folder}/1: up to 64 sequences in a batch\n"
    assert {file.name for file in (folder / "1").iterdir()} == {"model.py", "model.xml", "model.bin"}
    assert (folder / "1/model.bin").read_bytes() == (tmp_path / "M.bin").read_bytes()
    arguments = ["triton", str(folder.parent), str(tmp_path / "M.xml")]
    assert cli.main(arguments) == 1
    assert "1 exists: choose another --version" in capsys.readouterr().err
    assert not cli.main([*arguments, "--version", "2"])
    capsys.readouterr()
    assert cli.main([*arguments, "--version", "3", "--max-sequences", "2"]) == 1
    assert "config.pbtxt is not what this model and these options need" in capsys.readouterr().err
    assert sorted(file.name for file in folder.iterdir()) == ["1", "2", "config.pbtxt"]


def test_repository(tmp_path: Path) -> None:
    """All models of a repository are written, of each the newest version."""
    assert not cli.main(["demo", "--save", str(tmp_path / "models")])
    assert not cli.main(["triton", str(tmp_path / "triton"), str(tmp_path / "models")])
    assert {folder.name for folder in (tmp_path / "triton").iterdir()} == {"lstm_loop", "moving_window"}


def test_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["triton", str(tmp_path / "triton"), str(tmp_path)]) == 1
    assert f"there is no model in {tmp_path}" in capsys.readouterr().err


def any_rank() -> ov.Model:
    net = Net("any_rank")
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", None, "x")], names=["y"]))
    return nets.model(net)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (any_rank, (), "'x' has a dynamic rank, which Triton's configuration cannot express"),
        (frames, ("--decoupled",), "this model has no states"),
        (frames, ("--device-tensors",), "'x' is bf16"),
        (nets.sums, ("--device", "HETERO:NVIDIA,CPU"), "not HETERO:NVIDIA,CPU"),
        (nets.sums, ("--device", "MULTI:NVIDIA.x"), "not MULTI:NVIDIA.x"),
    ],
)
def test_refused(
    make: Any, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ov.save_model(make(), tmp_path / "M.xml", compress_to_fp16=False)
    assert cli.main(["triton", str(tmp_path / "repository"), str(tmp_path / "M.xml"), *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "repository").exists()


def test_text() -> None:
    """Names may have quotes and letters of any language."""
    assert text({"name": 'a "b" \\ é', "kind": Name("K"), "dims": [-1, 2], "on": True, "part": [{"x": 1}, {}]}) == (
        'name: "a \\"b\\" \\\\ é"\nkind: K\ndims: [-1, 2]\non: true\npart {\n  x: 1\n}\npart {\n}\n'
    )
