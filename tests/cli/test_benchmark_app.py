"""``ovgpu benchmark`` beside OpenVINO's benchmark_app: the same flags, the same keys in all files."""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from openvino.tools.benchmark.parameters import parse_args

from ovgpu.cli import parser
from tests.runtime import models

from .conftest import Write

OWN = {"--prompt", "--trace"}
FILES = {"-dump_config": "config.json", "-exec_graph_path": "graph.xml"}


def flags(of: argparse.ArgumentParser) -> dict[str, Any]:
    """Return, by option, what decides how its value is parsed."""
    return {
        option: (action.nargs, action.const, action.choices and sorted(action.choices))
        for action in of._actions
        for option in action.option_strings
    }


def test_flags_are_those_of_benchmark_app() -> None:
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    own, theirs = flags(commands.choices["benchmark"]), flags(parse_args())
    assert own.keys() - theirs.keys() == OWN
    for option, expected in theirs.items():
        found = own[option]
        assert found[0] == expected[0] and found[2] == expected[2], option  # const of -lfile differs: it has no value


@pytest.mark.parametrize("value", ["yes", "true", "t", "y", "1", "no", "false", "f", "n", "0", "maybe"])
def test_booleans(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-m", "model.xml", "-pc", value]
    try:
        expected = parse_args().parse_args(arguments).perf_counts
    except SystemExit:
        with pytest.raises(SystemExit):
            parser().parse_args(["benchmark", *arguments])
        return
    assert parser().parse_args(["benchmark", *arguments]).perf_counts is expected


def both(model: str, folder: Path, *arguments: str, files: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Run both programs with the same flags; return their report folders. ``files`` are options that name files."""
    folders = folder / "ovgpu", folder / "openvino"
    for found in folders:
        found.mkdir()
    for found, command in zip(
        folders, (["-m", "ovgpu", "benchmark"], ["-c", "from openvino.tools.benchmark.main import main; main()"])
    ):
        named = [text for option in files for text in (option, str(found / FILES[option]))]
        subprocess.run(
            [sys.executable, *command, "-m", model, "-d", "CPU", "-report_folder", str(found), *arguments, *named],
            check=True,
            capture_output=True,
        )
    assert sorted(p.name for p in folders[0].iterdir()) == sorted(p.name for p in folders[1].iterdir())
    return folders


def keys(value: Any) -> Any:
    """Return the keys of a JSON document; of a list, those of its first element."""
    if isinstance(value, dict):
        return {key: keys(inner) for key, inner in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def sections(path: Path) -> list[list[str]]:
    """Return the keys of the sections of a CSV report."""
    return [
        [line.partition(";")[0] for line in part.splitlines()]
        for part in path.read_text(encoding="utf-8").strip().split("\n\n")
    ]


def test_reports_as_csv(write: Write, tmp_path: Path) -> None:
    own, theirs = both(
        write(models.chain()),
        tmp_path,
        "-niter",
        "8",
        "-nireq",
        "2",
        "-hint",
        "none",
        "-nstreams",
        "1",
        "-report_type",
        "average_counters",
        "-pcsort",
        "sort",
        "-max_irate",
        "1000",
    )
    assert sections(own / "benchmark_report.csv") == sections(theirs / "benchmark_report.csv")
    for name in ("benchmark_sorted_report.csv", "benchmark_average_counters_report.csv"):
        delimiter = "," if "sorted" in name else ";"
        headers = [
            [cell.strip() for cell in next(csv.reader((folder / name).open(encoding="utf-8"), delimiter=delimiter))]
            for folder in (own, theirs)
        ]
        assert headers[0] == headers[1]


def test_reports_as_json(write: Write, tmp_path: Path) -> None:
    own, theirs = both(
        write(models.chain((-1, 3))),
        tmp_path,
        "-niter",
        "8",
        "-nireq",
        "2",
        "-report_type",
        "detailed_counters",
        "-json_stats",
        "-pc",
        "-pcseq",
        "-data_shape",
        "[1,3][2,3]",
        "-shape",
        "[1..4,3]",
        "-latency_percentile",
        "90",
        files=("-dump_config",),
    )
    for name in ("benchmark_report.json", "benchmark_detailed_counters_report.json", "config.json"):
        documents = [json.loads((folder / name).read_text(encoding="utf-8")) for folder in (own, theirs)]
        assert keys(documents[0]) == keys(documents[1]), name
    assert documents[0] == documents[1] | {"CPU": documents[1]["CPU"] | {"PERF_COUNT": "YES"}}


def test_execution_graphs(write: Write, tmp_path: Path) -> None:
    own, theirs = (
        etree.parse(folder / "graph.xml")
        for folder in both(write(models.chain()), tmp_path, "-niter", "2", "-api", "sync", files=("-exec_graph_path",))
    )
    inputs = [next(layer for layer in graph.iter("layer") if layer.get("name") == "x") for graph in (own, theirs)]
    assert inputs[0].get("type") == inputs[1].get("type") == "Input"
    for graph in own, theirs:
        assert {tuple(sorted(layer.attrib)) for layer in graph.iter("layer")} == {("id", "name", "type")}
    data = [dict(node.attrib) for layer in inputs for node in layer.iter("data")]
    assert data[0].keys() == data[1].keys()
    assert data[0]["runtimePrecision"] == data[1]["runtimePrecision"] == "f32"
    assert any(node.get("execTimeMcs").isdecimal() for node in own.iter("data"))
