"""The commands of `bench.gpu`, run on the emulator; and kernels recorded here for a GPU on another machine."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import gpu, gpu_card, gpu_layers, gpu_prepare, gpu_profile, gpu_sanitize, gpu_suite
from ovgpu.backends.cuda import kernels
from tests.emulator import nvrtc
from tests.emulator.driver_emu import largest_cluster
from tests.kernels import gate

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_both_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rehearsal: each command leaves a summary and a few files that are small enough to come back from a card."""
    work = tmp_path / "work"
    assert gpu.main(["--emulated", "--tiny", "--out", str(tmp_path / "out"), "--work", str(work)]) == 0
    output = capsys.readouterr().out
    assert len(output) <= gpu.SUMMARY + 1
    assert re.findall("^==== (\\w+)$", output, re.MULTILINE) == [
        "gpu_card",
        "gpu_suite",
        "gpu_suite",
        "gpu_suite",
        "gpu_sanitize",
        "gpu_peers",
        "gpu_suite",
        "gpu_peers",
        "gpu_layers",
        "gpu_profile",
        "gpu_serving",
    ]
    for command in gpu.BUDGETS:
        files = [*(tmp_path / "out" / command).iterdir()]
        assert len(files) <= 8 and max(path.stat().st_size for path in files) < 16 << 20
        assert (tmp_path / "out" / command / "summary.txt").read_text().count(": done\n") == len(
            re.findall("^== ", (work / command / "output.log").read_text(), re.MULTILINE)
        )
        with tarfile.open(tmp_path / "out" / command / "results-1.tar.gz") as archive:
            assert {member.name for member in archive} == {
                str(path.relative_to(work / command)) for path in (work / command).rglob("*") if path.is_file()
            }
    found = {path.stem: json.loads(path.read_text()) for path in work.glob("*/*.json")}
    assert set(found["card"]["launches"].values()) == {"right"}
    for part in ("changed", "models"):
        suite = json.loads((work / "correctness" / part / "suite.json").read_text())
        assert suite["counts"]["passed"] == suite["tests"] == len(suite["ran"]) > 0 and not suite["failures"]
    assert json.loads((work / "correctness" / "rest" / "suite.json").read_text())["tests"] == 0  # all have run
    assert found["text"]["items"]["llama int4 128"]["engines"]["ovgpu"]["appended"]
    assert found["text"]["items"]["llama int4 sequences 8"]["engines"]["ovgpu"]["tokens_per_second"] > 0
    assert found["networks"]["items"]["lstm_state"]["engines"]["ovgpu"]["right"]
    assert len(found["layers"]["cases"]) == 3 and all(row["us"] > 0 for row in found["layers"]["cases"].values())
    assert found["profile"]["workloads"]["lstm_state"]["call_us"] > 0
    served = found["serving"]["lstm_b1"]
    assert [*served["per_second"]] == ["1", "2", "4", "8"] and all(served["per_second"].values())
    assert served["starts"].keys() == {"cold", "cached"} and served["starts"]["cold"]["first"] > 0


def test_clusters_of_recorded_kernels(tmp_path: Path, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked for each recorded launch; machine code that is missing is named."""
    kernel = kernels.of_file("pixel_normalization.cu", "normalize_pixels<float, 4, CLUSTER>")
    binary, launch = kernel.binary(), {"name": kernel.name, "threads": 256, "shared": 1 << 10}
    rows = [{**launch, "key": key, "cluster": blocks} for key, blocks in (("known", 4), ("known", 16), ("other", 4))]
    file = tmp_path / "clusters.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in [*rows, rows[0]]))
    monkeypatch.setattr(gpu_card.kernel_cache, "load", lambda key, store: binary if key == "known" else None)
    with largest_cluster(8):
        found = {(row["key"], row["cluster"]): row["fits"] for row in gpu_card.occupancy(file)}
    assert found == {("known", 4): True, ("known", 16): False, ("other", 4): "no machine code"}


def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are divided among archives, small ones first; one that is too large is cut, and those without room are
    named."""
    monkeypatch.setattr(gpu, "ARCHIVE_BYTES", 20_000)
    monkeypatch.setattr(gpu, "MAX_ARCHIVES", 3)
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir(), out.mkdir()
    for number, size in enumerate((100, 9_000, 9_500, 10_000, 11_000, 50_000)):
        (work / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(size))
    assert gpu.archive(work, out) == ["4.bin", "5.bin", "5.bin"]
    sizes = dict[str, int]()
    for path in sorted(out.iterdir()):
        assert path.stat().st_size < 20_000
        with tarfile.open(path) as archive:
            sizes |= {member.name: member.size for member in archive}
    assert sizes == {"0.bin": 100, "1.bin": 9_000, "2.bin": 9_500, "3.bin": 10_000}


def test_a_layer_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = gpu_layers.Product(128, 256, "no such form", 4)
    monkeypatch.setattr(gpu_layers, "TINY", [broken, gpu_layers.TINY[-1]])
    assert gpu_layers.main(["--emulated", "--tiny", "--out", str(tmp_path / "layers.json")]) == 1
    failed, right = json.loads((tmp_path / "layers.json").read_text())["cases"].values()
    assert "KeyError" in failed["failed"] and right["error"] <= 1
    assert "FAILED KeyError" in capsys.readouterr().out


def test_an_item_that_fails_or_hangs_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failing items come first in the summary, one that hangs is stopped, and one without time does not begin."""
    good = ["--device", "emulator", "tests/kernels/test_range.py", "--out", "{work}"]
    late = gpu.Item("gpu_suite", 1e4, good)
    monkeypatch.setattr(
        gpu, "items", lambda command, options: [gpu.Item("gpu_suite", 60, good), gpu.Item("gpu_nowhere", 60, []), late]
    )
    arguments = ["--budget", "60", "--out", str(tmp_path / "out"), "--work", str(tmp_path)]
    assert gpu.main(["correctness", *arguments]) == 1
    output = capsys.readouterr().out
    assert output.index("==== gpu_nowhere") < output.index("0 not begun") and late.status == "not begun"
    assert "gpu_nowhere: FAILED (1)" in output and "gpu_suite: FAILED (not begun)" in output
    assert (tmp_path / "out" / "summary.txt").read_text().strip() == output.strip()
    item = gpu.Item("gpu_suite", 60, good)
    gpu.run(item, 0.1, tmp_path)
    assert item.status == "stopped: out of time"


def test_long_outputs_are_shortened() -> None:
    done = [gpu.Item("one", 1, [], "x" * 50_000, 0), gpu.Item("two", 1, [], "begin" + "y" * 50_000 + "end", 1)]
    text = gpu.summary(done, ["large.json"])
    assert len(text) <= gpu.SUMMARY and text.index("==== two") < text.index("==== one")
    assert "begin" in text and "end" in text and text.count("y") > 2 * text.count("x")
    assert "not in the archives, or cut short: large.json" in text


def failure(test: str, raised: str) -> dict[str, str]:
    return {"test": test, "raised": raised, "trace": ""}


def test_failures_of_one_kind_are_grouped() -> None:
    found = [failure(f"tests/a.py::t{n}", f"AssertionError: {n} of 21 values differ at 0x7f{n}0") for n in range(3)]
    found.insert(1, failure("tests/b.py::u", "TypeError: no"))
    groups = gpu_suite.groups(found)
    assert [len(failures) for _, failures in groups] == [3, 1]
    result: dict[str, Any] = {
        "counts": {"failed": 4},
        "tests": 9,
        "seconds": 1,
        "unfinished": 0,
        "failures": found,
        "lost": ["tests/c.py: died"],
    }
    lines = list(gpu_suite.report(result))
    assert lines[1].startswith("3 x AssertionError") and lines[-1] == "tests/c.py: died"


def test_tests_that_are_left_out(tmp_path: Path) -> None:
    """Earlier failures can run again alone, and tests that ran can be skipped; files that are missing do not matter."""
    tests = {"a.py": ["a.py::one", "a.py::two"], "b.py": ["b.py::one"]}
    (tmp_path / "suite.json").write_text(json.dumps({"failures": [failure("a.py::two", "")], "ran": ["b.py::one"]}))

    def kept(failed: list[Path] | None = None, skip: Sequence[Path] = ()) -> dict[str, list[str]]:
        return gpu_suite.selected(tests, argparse.Namespace(failed=failed, skip=skip))

    assert kept() == tests
    reports = [tmp_path / "suite.json", tmp_path / "nowhere.json"]
    assert gpu_suite.paths(argparse.Namespace(failed=reports)) == ["a.py"]
    assert gpu_suite.paths(argparse.Namespace(failed=reports[1:])) == [] and gpu_suite.collect([], "emulator") == {}
    assert kept([tmp_path / "suite.json", tmp_path / "nowhere.json"]) == {"a.py": ["a.py::two"]}
    assert kept(skip=[tmp_path / "nowhere.json", tmp_path / "suite.json"]) == {"a.py": ["a.py::one", "a.py::two"]}
    assert kept([tmp_path / "nowhere.json"]) == {}


def test_tests_of_changed_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed header changes the kernels of all files that include it, also through others."""
    names = [
        "cuda_kernels/attention_cluster.cuh",
        "cuda_kernels/range.cu",
        "tests/state/test_requests.py",
        "README.md",
        "tests/cli/test_cli.py",
        "tests/kernels/test_broken_axes.py",
    ]
    monkeypatch.setattr(gpu_suite.subprocess, "run", lambda *_, **__: argparse.Namespace(stdout="\n".join(names)))
    found = gpu_suite.changed_since("some commit")
    assert {
        "tests/kernels/test_range.py",
        "tests/kernels/test_attention_stream.py",
        "tests/state/test_requests.py",
        "tests/kernels/test_attention_mma.py",
    } <= set(found)
    assert not any(
        name.startswith(("tests/cli", "tests/kernels/test_broken", "tests/kernels/test_sort")) for name in found
    )


def test_kernels_by_time() -> None:
    times = gpu_profile.grouped([("a", 1.0), ("b", 30.0), ("a", 3.0), ("b", 50.0)])
    first, second = gpu_profile.rows(times, 2)
    assert (first["kernel"], first["us"], first["count"], first["each_us"]) == ("b", 40.0, 1.0, 40.0)
    assert second["share"] == pytest.approx(4 / 84)
    row = {"kernels": [first, second], "device_us": 42.0, "call_us": 50.0}
    text = gpu_profile.table({"device": "card", "workloads": {"w": row, "x": {"failed": "Error: no\nmore"}}})
    assert "| 40.0 | 1 | 40.00 | b |" in text and "## x\n\nError: no\n" in text


@pytest.mark.parametrize(
    ("printed", "status", "reason"),
    [("ERROR SUMMARY: 0 errors", 0, ""), ("Error: the device is not supported", 1, "the device is not supported")],
)
def test_probe_of_the_sanitizer(
    printed: str, status: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some containers the tool refuses the card; without the tool there is nothing to do, either."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "FileNotFoundError" in gpu_sanitize.probe()
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\necho '{printed}'\nexit {status}\n")
    tool.chmod(0o755)
    found = gpu_sanitize.probe()
    assert reason in found and bool(found) is bool(reason)


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        ("3 passed\n========= ERROR SUMMARY: 0 errors", 0),
        ("========= ERROR SUMMARY: 2 errors", 2),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 1),
        ("killed", None),
    ],
)
def test_errors_counted_by_the_sanitizer(output: str, errors: int | None) -> None:
    assert gpu_sanitize.read(output, 0)["errors"] == errors


LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
from ovgpu.backends.cuda import kernel_cache, kernels, rt

class Device:
    compute_capability = "90"

class Module:
    def load(self, cubin):
        assert cubin[:4] == b"\\x7fELF"
    def get_function(self, symbol):
        print(symbol)

def refuses(*_, **__):
    raise AssertionError("NVRTC is asked to compile")

cuda = rt.cupy().cuda
cuda.Device, cuda.get_device_id, cuda.function.Module = Device, lambda: 0, Module
cuda.compiler.compile_using_nvrtc = refuses
for name in sys.argv[2:]:
    kernels.of_file("range.cu", name).function()
"""


def test_recorded_kernels_are_found_elsewhere(tmp_path: Path) -> None:
    """The loading code finds recorded kernels from another folder, where NVRTC fails."""
    pytest.importorskip("cupy")
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    folder = tmp_path / "prepared"
    assert gpu_prepare.main([str(folder), "--wheels", "--only", "tests/kernels/test_range.py"]) == 0
    assert (folder / "kernels.tar.xz").stat().st_size and 'bench.gpu "$1"' in (folder / "run.sh").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("ovgpu", "cuda_kernels"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(elsewhere)], check=True)
    names = [*gate.table()["range.cu"]]
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(elsewhere), *names],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(tmp_path), "CUPY_CACHE_DIR": str(folder / "kernels")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == len(names)
