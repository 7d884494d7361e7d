"""Every kernel instance that the tests run compiles for real devices without register spills.

NVRTC compiles the instances of files that have changed since `python -m tests.kernels.gate` recorded its results, and
one instance of some other files; with --long, it compiles all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.emulator import cupy_emu, nvrtc
from tests.emulator.kernel import RawModule
from tests.emulator.limits import Block, Usage
from tests.harness.draws import order
from tests.kernels import gate

SHARE = 4  # of the files that have not changed, an instance of one in so many is compiled


@pytest.mark.parametrize("file", sorted(gate.table()))
def test_instances_compile_without_spills(file: str, request: pytest.FixtureRequest) -> None:
    names, architectures = sorted(gate.table()[file]), nvrtc.ARCHITECTURES
    if gate.is_compiled(file) and not request.config.getoption("--long"):
        names, architectures = [] if order(file) % SHARE else names[:1], nvrtc.NEWEST
    assert gate.faults([(file, name) for name in names], architectures) == []


def test_recorded_spills() -> None:
    spilled: dict[gate.Instance, dict[str, int]] = {}
    for file, names in gate.table().items():
        for name, needs in names.items():
            assert [*needs] == [*gate.architectures(file)]
            for architecture, use in needs.items():
                if use.spilled:
                    spilled.setdefault((file, name), {})[architecture] = use.spilled
    assert spilled == gate.SPILLS


def test_digests_of_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A changed file, header or list of instances changes the digest; comments and other headers do not."""
    (tmp_path / "range.cu").write_text('#include "strided.cuh"\none')
    (tmp_path / "strided.cuh").write_text('#include "sums.cuh"')
    (tmp_path / "sums.cuh").write_text("two")
    monkeypatch.setattr(nvrtc, "KERNELS", tmp_path)
    seen = {gate.digest("range.cu")}
    (tmp_path / "sums.cuh").write_text("three")
    seen.add(gate.digest("range.cu"))
    (tmp_path / "range.cu").write_text('#include "strided.cuh"\nfour')
    seen.add(gate.digest("range.cu"))
    (tmp_path / "range.cu").write_text('#include "strided.cuh"\nfour  // for a reader')
    (tmp_path / "other.cuh").write_text("five")
    seen.add(gate.digest("range.cu"))
    monkeypatch.setattr(gate, "table", dict)
    seen.add(gate.digest("range.cu"))
    assert len(seen) == 4 and not gate.is_compiled("range.cu")


def test_the_files_exist() -> None:
    assert set(gate.table()) <= {path.name for path in nvrtc.KERNELS.glob("*.cu")}


def test_compile_errors_are_reported() -> None:
    """A kernel that does not exist is a fault on every architecture."""
    found = gate.faults([("range.cu", "ranges<int>")])
    assert [fault[:34] for fault in found] == [
        f"range.cu does not compile for {name}"[:34] for name in nvrtc.ARCHITECTURES
    ]


def test_spills_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "usage", lambda file, names, architecture: {name: Usage(255, 16, 0) for name in names})
    assert gate.faults([("range.cu", "range<int>")])[0] == "range.cu: range<int> spills 16 bytes for sm_75"


def test_blocks_beyond_the_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are the registers of all threads, and each architecture's shared memory."""
    monkeypatch.setattr(gate, "_blocks", {})
    monkeypatch.setattr(gate, "usage", lambda file, names, architecture: {name: Usage(129, 0, 40) for name in names})
    instance = ("range.cu", next(iter(gate.table()["range.cu"])))
    for block, wrong, where in (
        (Block(256, 0), "", ()),
        (Block(512, 0), "512 threads of 129 registers", nvrtc.ARCHITECTURES),
        (Block(32, 99 << 10), "40 + 101376 bytes of shared memory", ("sm_75", "sm_86", "sm_89", "sm_120")),
        (Block(32, 64 << 10), "40 + 65536 bytes of shared memory", ("sm_75",)),
    ):
        gate._blocks[instance] = block
        assert gate.faults([instance]) == [
            f"{instance[0]}: {instance[1]} was launched with {wrong}: too much for {name}" for name in where
        ]
    gate._blocks[instance] = Block(32, 65 << 10)
    assert [fault[-5:] for fault in gate.launch_faults()] == ["sm_75"]


def launch(name: str, threads: int, prelude: str = "") -> None:
    text = (nvrtc.KERNELS / "range.cu").read_text()
    module = RawModule(prelude + text, options=(f"-I{nvrtc.KERNELS}",), name_expressions=[name])
    y = cupy_emu.empty(threads, np.int32)
    module.get_function(name)((1,), (threads,), (y, np.int64(0), np.int64(1), np.int64(threads)))


def test_launches_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest block of each instance is recorded, and that of a file for kernels behind generated source."""
    monkeypatch.setattr(gate, "_blocks", {})
    for threads in (32, 512, 64):
        launch("range<int, long long>", threads)
    launch("range<int, long long>", 256, "using Generated = int;")
    assert gate._blocks == {("range.cu", "range<int, long long>"): Block(512, 0), ("range.cu", ""): Block(256, 0)}
    assert gate.launch_faults() == []


def test_launches_behind_generated_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels behind generated source need launch bounds or few threads, since their register use is unknown."""
    monkeypatch.setattr(gate, "_faults", [])
    launch("range<int, long long>", 256, "using Other = int;")
    assert gate._faults == []
    launch("range<int, long long>", 288, "using Another = int;")
    assert gate._faults == ["range.cu: range<int, long long> was launched with 288 threads, and has no launch bounds"]


def test_looked_up_kernels_are_recorded() -> None:
    """The plugin records the kernels that the emulator looks up, except those of modified sources."""
    text = (nvrtc.KERNELS / "range.cu").read_text()
    options = (f"-I{nvrtc.KERNELS}",)
    name = next(iter(gate.table()["range.cu"]))
    gate._seen.discard(("range.cu", name))
    RawModule(f"// changed\n{text}", options=options, name_expressions=[name]).get_function(name)
    assert ("range.cu", name) not in gate._seen
    RawModule(text, options=options, name_expressions=[name]).get_function(name)
    assert ("range.cu", name) in gate._seen
