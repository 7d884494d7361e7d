"""Every kernel instance that the tests run compiles for real devices, and none keeps its variables in memory."""

from __future__ import annotations

import pytest

from tests.emulator import nvrtc
from tests.kernels import gate


@pytest.mark.parametrize("file", sorted(gate.table()))
def test_instances_compile_without_spills(file: str) -> None:
    assert gate.faults((file, name) for name in gate.table()[file]) == []


def test_the_files_exist() -> None:
    assert set(gate.table()) <= {path.name for path in nvrtc.KERNELS.glob("*.cu")}


def test_faults_are_told() -> None:
    """A kernel that is not there, and one that needs more registers than a thread has."""
    (fault, other) = gate.faults([("range.cu", "ranges<int>")])
    assert "range.cu does not compile for sm_80" in fault and "sm_90" in other


def test_spills_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "usage", lambda file, names, architecture: {name: [255, 16] for name in names})
    assert gate.faults([("range.cu", "range<int>")])[0] == "range.cu: range<int> spills 16 bytes for sm_80"


def test_kernels_that_tests_ask_for_are_met() -> None:
    """The plugin watches the emulator; what a test changes is no instance."""
    from tests.emulator.kernel import RawModule

    text = (nvrtc.KERNELS / "range.cu").read_text()
    options = (f"-I{nvrtc.KERNELS}",)
    name = next(iter(gate.table()["range.cu"]))
    gate._met.discard(("range.cu", name))
    RawModule(f"// changed\n{text}", options=options, name_expressions=[name]).get_function(name)
    assert ("range.cu", name) not in gate._met
    RawModule(text, options=options, name_expressions=[name]).get_function(name)
    assert ("range.cu", name) in gate._met
