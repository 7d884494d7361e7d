"""The list of operations in opsets.json, compared with ovgpu's registry and with openvino.

The list has the operations on the pages opset1 to opset17 of OpenVINO's documentation, the others in openvino's own
opsets, the newest operations that only have their own page, and the two that are internal to OpenVINO. Its versions are
those in model files: Acosh is documented as version 3, and written as one of opset4.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ovgpu.cli.nvidia_plugin import NVIDIA_PLUGIN
from ovgpu.ops import lookup
from tests.conformance import FOLDERS, Name, about, labels, modules, own, tables
from tests.harness import Scenario, judge

LIST = json.loads((Path(__file__).parent / "opsets.json").read_text())
LISTED: list[Name] = [(op, version) for op, its in LIST.items() for version in its]
OPSETS = range(1, 18)
OTHERWISE = {"absolute": "abs", "ceil": "ceiling", "ifop": "if"}  # builders with other names
INTERNAL = ["AUGRUCell", "AUGRUSequence"]  # no file has them
NEWER = ["Atan2", "BGRtoNV12", "Bincount", "RGBtoNV12", "RandomPoisson"]  # newer than openvino
UNBUILT = [
    *INTERNAL,
    *NEWER,
    "Reverse",
    "Xor",
    "ExperimentalDetectronDetectionOutput",
    "ExperimentalDetectronGenerateProposalsSingleImage",
    "ExperimentalDetectronPriorGridGenerator",
    "ExperimentalDetectronROIFeatureExtractor",
    "ExperimentalDetectronTopKROIs",
]
UNKNOWN = ("LSTMSequence", "opset1")  # unknown to openvino, although it is documented
CALLED = {
    ("MVN", "opset1"): ("MVN", "opset2"),
    ("LogicalXor", "opset1"): ("LogicalXor", "opset2"),
    ("RNNCell", "opset0"): ("RNNCell", "opset1"),
}  # names in openvino; files may have either
NO_BUILDER = [UNKNOWN, ("RNNCell", "opset0"), ("MVN", "opset1"), ("ShuffleChannels", "opset1")]  # in their own opset


def test_the_registry_has_what_is_listed() -> None:
    missing, more = set(LISTED) - set(own()), set(own()) - set(LISTED)
    assert not missing, f"not in the registry: {named(missing)}"
    assert not more, f"not in the list: {named(more)}"


@pytest.mark.parametrize("opset", OPSETS)
def test_builders_of(opset: int) -> None:
    """The list has every operation for which openvino's Python has a builder."""
    known = {plain(op) for op, version in LISTED if op not in INTERNAL and number(version) <= opset}
    assert builders(opset) <= known, f"not in the list: {builders(opset) - known}"


def test_every_operation_names_its_page() -> None:
    assert not [name for name in own() if not re.fullmatch(r"[a-z]+/[a-z0-9-]+", lookup(*name).page)]


def test_every_operation_has_a_builder() -> None:
    missing = [
        (op, version) for op, version in LISTED if op not in UNBUILT and plain(op) not in builders(number(version))
    ]
    assert sorted(missing) == sorted(NO_BUILDER), named(missing)


def test_openvino_reads_every_version() -> None:
    """OpenVINO reads one case of each version as the version that is listed."""
    core, wrong, every = judge.core(), [], [case for folder in FOLDERS for case in tables(*modules(folder))]
    known = sorted(every, key=lambda case: isinstance(case, Scenario) or case.expect is None)
    rows = {name: case for case in known for name in about(case)}
    for name in LISTED:
        if name[0] not in INTERNAL + NEWER and name != UNKNOWN:
            read = {
                (op.get_type_info().name, op.get_type_info().version_id)
                for op in core.read_model(*rows[name].net.build()).get_ops()
            }
            wrong += [f"{named([name])} is read as {sorted(read)}"] if CALLED.get(name, name) not in read else []
    assert not wrong, "\n".join(wrong)


def test_the_nvidia_plugin_has_some_of_them() -> None:
    assert {op for op, _ in LISTED} >= NVIDIA_PLUGIN and len(NVIDIA_PLUGIN) == 109


def builders(opset: int) -> set[str]:
    module = importlib.import_module(f"openvino.opset{opset}") if judge.openvino() else None
    return {
        OTHERWISE.get(plain(name), plain(name))
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def number(version: str) -> int:
    """Return the number of the opset, 1 for RNNCell, which reports opset0."""
    return max(int(version.removeprefix("opset")), OPSETS[0])


def named(names: Any) -> str:
    return ", ".join(sorted(labels(*name)[1] for name in names))
