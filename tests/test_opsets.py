"""The operations that there are: the list in opsets.json against ovgpu's registry and against openvino.

The list has what the pages opset1 to opset17 of OpenVINO's documentation name, what openvino's own opsets have besides,
the newest operations that only have a page of their own, and the two that OpenVINO keeps to itself. Its versions are
those of models' files: Acosh is documented as version 3, and written as one of opset4.
"""
from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from ovgpu.cli.nvidia_plugin import NVIDIA_PLUGIN
from tests.conformance import FOLDERS, Name, about, modules, own, spelled, tables
from tests.harness import Scenario, judge

LIST = json.loads((Path(__file__).parent / "opsets.json").read_text())
LISTED: list[Name] = [(op, version) for op, its in LIST.items() for version in its]
OPSETS = range(1, 18)
OTHERWISE = {"absolute": "abs", "ceil": "ceiling", "ifop": "if"}  # what builders are called
INTERNAL = ["AUGRUCell", "AUGRUSequence"]  # which no file has
YOUNGER = ["Atan2", "BGRtoNV12", "Bincount", "RGBtoNV12", "RandomPoisson"]  # than openvino
UNBUILT = [*INTERNAL, *YOUNGER, "Reverse", "Xor", "ExperimentalDetectronDetectionOutput",
           "ExperimentalDetectronGenerateProposalsSingleImage", "ExperimentalDetectronPriorGridGenerator",
           "ExperimentalDetectronROIFeatureExtractor", "ExperimentalDetectronTopKROIs"]
UNKNOWN = ("LSTMSequence", "opset1")  # to openvino, although it is documented
CALLED = {("MVN", "opset1"): ("MVN", "opset2"), ("LogicalXor", "opset1"): ("LogicalXor", "opset2"),
          ("RNNCell", "opset0"): ("RNNCell", "opset1")}  # by openvino; files may have either
LATE = [UNKNOWN, ("RNNCell", "opset0"), ("MVN", "opset1"), ("ShuffleChannels", "opset1")]  # builders


def test_the_registry_has_what_is_listed() -> None:
    missing, more = set(LISTED) - set(own()), set(own()) - set(LISTED)
    assert not missing, f"not in the registry: {named(missing)}"
    assert not more, f"not in the list: {named(more)}"


@pytest.mark.parametrize("opset", OPSETS)
def test_builders_of(opset: int) -> None:
    """What openvino's Python makes nodes with."""
    known = {plain(op) for op, version in LISTED if op not in INTERNAL and number(version) <= opset}
    assert builders(opset) <= known, f"not in the list: {builders(opset) - known}"


def test_every_operation_has_a_builder() -> None:
    missing = [(op, version) for op, version in LISTED
               if op not in UNBUILT and plain(op) not in builders(number(version))]
    assert sorted(missing) == sorted(LATE), named(missing)


def test_openvino_reads_every_version() -> None:
    """As what it is listed: one case of each."""
    core, wrong, every = judge.core(), [], [case for folder in FOLDERS for case in tables(*modules(folder))]
    known = sorted(every, key=lambda case: isinstance(case, Scenario) or case.expect is None)
    rows = {name: case for case in known for name in about(case)}
    for name in LISTED:
        if name[0] not in INTERNAL + YOUNGER and name != UNKNOWN:
            read = {(op.get_type_info().name, op.get_type_info().version_id)
                    for op in core.read_model(*rows[name].net.build()).get_ops()}
            wrong += [f"{named([name])} is read as {sorted(read)}"] if CALLED.get(name, name) not in read else []
    assert not wrong, "\n".join(wrong)


def test_the_nvidia_plugin_has_some_of_them() -> None:
    assert {op for op, _ in LISTED} >= NVIDIA_PLUGIN and len(NVIDIA_PLUGIN) == 109


def builders(opset: int) -> set[str]:
    module = importlib.import_module(f"openvino.opset{opset}") if judge.openvino() else None
    return {OTHERWISE.get(plain(name), plain(name)) for name, value in vars(module).items()
            if not name.startswith("_") and not inspect.ismodule(value)}


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def number(version: str) -> int:
    """The first opset that has it; RNNCell says of itself that it is of opset0."""
    return max(int(version.removeprefix("opset")), OPSETS[0])


def named(names: Any) -> str:
    return ", ".join(sorted(spelled(*name)[1] for name in names))
