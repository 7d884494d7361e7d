"""The module ovgpu.genai beside openvino_genai: names, members, and the table of them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import ovgpu
import ovgpu.genai
from ovgpu.genai.absent import ABSENT
from tests.genai.record_wheel import PATH
from tests.genai.table import DIFFERENCES, PAGE, TABLE, table

RECORD = json.loads(PATH.read_text())
ENUMERATIONS = (
    ovgpu.genai.StopCriteria,
    ovgpu.genai.StreamingStatus,
    ovgpu.genai.GenerationFinishReason,
    ovgpu.genai.GenerationStatus,
)
NAMES = {*RECORD["classes"], *RECORD["functions"]}


def test_names() -> None:
    """Each name of openvino_genai is either there or absent, and nothing else is public."""
    public = {*ovgpu.genai.__all__}
    assert public | {*ABSENT} == NAMES and not public & {*ABSENT}


def test_members() -> None:
    """Every member of a class that is there: attributes of the class, or of its objects."""
    ids = ovgpu.Tensor(np.ones((1, 1), np.int64))
    made = {"TokenizedInputs": ovgpu.genai.TokenizedInputs(ids, ids), "DecodedResults": ovgpu.genai.DecodedResults()}
    made["EncodedResults"] = ovgpu.genai.EncodedResults([], [], [], ovgpu.genai.PerfMetrics())
    records = ("RawPerfMetrics", "ASRRawPerfMetrics", "WhisperRawPerfMetrics")
    records += ("ASRDecodedResultChunk", "RawImageGenerationPerfMetrics", "WhisperWordTiming")
    records += ("VLMDecodedResults", "VideoMetadata")
    made |= {name: getattr(ovgpu.genai, name)() for name in records}
    made["ASRDecodedResults"] = ovgpu.genai.ASRDecodedResults([], [], [], ovgpu.genai.ASRPerfMetrics())
    made["SchedulerConfig"] = ovgpu.genai.SchedulerConfig()
    made["GenerationResult"] = ovgpu.genai.GenerationResult(
        0, [], [], ovgpu.genai.GenerationStatus.FINISHED, ovgpu.genai.PerfMetrics()
    )
    forms = ("StructuredOutputConfig", "StructuralTagsConfig", "StructuralTagItem")
    made |= {name: getattr(ovgpu.genai, name)() for name in forms}
    made |= {kind.__name__: next(iter(kind)) for kind in ENUMERATIONS}
    for name in ovgpu.genai.__all__:
        found = made.get(name, getattr(ovgpu.genai, name))
        assert not [member for member in RECORD["classes"].get(name, ()) if not hasattr(found, member)], name


def test_enumerations() -> None:
    for kind in ENUMERATIONS:
        names = {name for name in RECORD["classes"][kind.__name__] if name.isupper()}
        assert {member.name for member in kind} == names
        assert [kind(int(member)) for member in kind] == [*kind] and next(iter(kind)) != 0
    assert repr(ovgpu.genai.StopCriteria.NEVER) == "<StopCriteria.NEVER: 2>"


def test_table() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None and found[2] == table(), "write it by `python -m tests.genai.table`"
    members = {f"{name}.{member}" for name in ovgpu.genai.__all__ for member in RECORD["classes"].get(name, ())}
    assert {*DIFFERENCES} <= members


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_absent_names(name: str) -> None:
    """Programs can import them. Their use is an error that says why."""
    found = getattr(ovgpu.genai, name)
    assert isinstance(found, type) and not isinstance(3, found)
    with pytest.raises(ovgpu.Error, match=f"ovgpu.genai has no {name}: .*; it has .*LLMPipeline"):
        found("DIR", device="CPU")
    with pytest.raises(ovgpu.Error, match=f"ovgpu.genai has no {name}: "):
        _ = found.MEMBER  # type: ignore[attr-defined]
    with pytest.raises(ovgpu.Error, match=f"ovgpu.genai has no {name}: "):
        type("Derived", (found,), {})()


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match=r"module 'ovgpu\.genai' has no attribute 'LLMPipelines'"):
        _ = ovgpu.genai.LLMPipelines
    assert ovgpu.genai.get_version() == ovgpu.__version__


def test_imports_are_lazy() -> None:
    """`import ovgpu` does not import the module, and that imports none of its extra's packages."""
    code = """
import sys, ovgpu
assert "ovgpu.genai" not in sys.modules
import ovgpu.genai
print({"tokenizers", "jinja2", "openvino"} & sys.modules.keys() or "none")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
