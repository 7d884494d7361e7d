"""Every kernel instance that the tests run compiles for real devices, and none keeps its variables in memory.

NVRTC compiles what has changed since `python -m tests.kernels.gate` recorded what it said, and one instance of every
file; with --long, all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator import nvrtc
from tests.kernels import gate


@pytest.mark.parametrize("file", sorted(gate.table()))
def test_instances_compile_without_spills(file: str, request: pytest.FixtureRequest) -> None:
    names = sorted(gate.table()[file])
    if gate.is_compiled(file) and not request.config.getoption("--long"):
        names = names[:1]
    assert gate.faults((file, name) for name in names) == []


def test_what_is_recorded_spills_nothing() -> None:
    spilled = {(file, name) for file, names in gate.table().items() for name, needs in names.items()
               if sorted(needs) != sorted(nvrtc.ARCHITECTURES) or any(spills for _, spills in needs.values())}
    assert spilled <= set(gate.SPILLS)


def test_sources_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed file, header or list of instances is compiled anew; changed comments are not."""
    (tmp_path / "range.cu").write_text("one")
    (tmp_path / "sums.cuh").write_text("two")
    monkeypatch.setattr(nvrtc, "KERNELS", tmp_path)
    seen = {gate.digest("range.cu")}
    (tmp_path / "sums.cuh").write_text("three")
    seen.add(gate.digest("range.cu"))
    (tmp_path / "range.cu").write_text("four")
    seen.add(gate.digest("range.cu"))
    (tmp_path / "range.cu").write_text("four  // for a reader")
    seen.add(gate.digest("range.cu"))
    monkeypatch.setattr(gate, "table", dict)
    seen.add(gate.digest("range.cu"))
    assert len(seen) == 4 and not gate.is_compiled("range.cu")


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
