"""The comparison of plans and kernels between revisions finds differences and nothing else."""

from __future__ import annotations

import pytest

from ovgpu import passes

from . import process_replay
from .process_replay import differences, dump


def test_a_failure_in_both_revisions_is_found() -> None:
    found = dump(["no such model"])
    assert len(list(differences(found, found))) == len(found) > 0


def test_a_pass_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_replay, "CONFIGS", {"default": {}})
    before = dump(["llama"])
    assert not list(differences(before, dump(["llama"])))
    for (*plans, kernels), is_card in zip(before.values(), (False, True), strict=True):
        assert plans and all("Rotary" in plan for plan in plans) and ("attend_split" in kernels) == is_card
    monkeypatch.setattr(passes, "PASSES", [entry for entry in passes.PASSES if entry.name != "fuse_rotary"])
    (first, *_) = differences(before, dump(["llama"]))
    assert first.startswith("== llama CPU default\n") and "\n-" in first and "\n+" in first
