"""The stages of `bench.gpu`, tried on the emulator; and kernels that are recorded here for a card elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, gpu_prepare, gpu_profile, gpu_sanitize, gpu_smoke, gpu_suite
from tests.emulator import nvrtc
from tests.kernels import gate

ROOT = Path(__file__).parents[2]


def test_all_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--emulated", "--tiny", "--out", str(tmp_path)]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert len(said) < gpu.SUMMARY + 2000 and said.count("==== gpu_") == said.count(": done\n") == 8
    smoke, suite, llama, vision, profile = (json.loads((tmp_path / f"{name}.json").read_text()) for name in (
        "smoke", "suite", "llama", "vision", "profile"))
    assert smoke["lstm_state f32"]["right"] and smoke["lstm_state f16"]["right"]
    assert suite["counts"]["passed"] == suite["tests"] > 0 and not suite["failures"]
    assert llama["items"]["int4 decode 16"]["appended"]
    assert vision["items"]["lstm_state"]["engines"]["ovgpu"]["right"]
    assert profile["workloads"]["lstm_state"]["host"]["us"] > 0


def test_a_part_that_fails_or_hangs_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """The worst is told first."""
    good = ["--device", "EMULATED", "--models", "lstm_state", "--out", str(tmp_path)]
    monkeypatch.setattr(gpu, "parts", lambda stage, options: [
        gpu.Part("gpu_smoke", good), gpu.Part("gpu_nowhere", [])])
    assert gpu.main(["--stage", "0", "--budget", "60", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.index("gpu_nowhere : 1") < said.index("2 of 2 right")
    part = gpu.Part("gpu_smoke", good)
    gpu.run(part, 0.1, tmp_path / "log")
    assert part.status == "stopped: out of time"


def failure(test: str, raised: str) -> dict[str, str]:
    return {"test": test, "raised": raised, "trace": ""}


def test_failures_of_one_kind_stand_together() -> None:
    found = [failure(f"tests/a.py::t{n}", f"AssertionError: {n} of 21 values differ at 0x7f{n}0") for n in range(3)]
    found.insert(1, failure("tests/b.py::u", "TypeError: no"))
    groups = gpu_suite.groups(found)
    assert [len(failures) for _, failures in groups] == [3, 1]
    result: dict[str, Any] = {"counts": {"failed": 4}, "tests": 9, "seconds": 1, "unfinished": 0, "failures": found,
                              "lost": ["tests/c.py: died"]}
    lines = list(gpu_suite.report(result))
    assert lines[1].startswith("3 x AssertionError") and lines[-1] == "tests/c.py: died"


def test_the_failed_tests_alone(tmp_path: Path) -> None:
    failed = [failure("tests/kernels/test_range.py::test_no_elements", "")]
    names = gpu_suite.collect(["tests/kernels/test_range.py"], "emulator")["tests/kernels/test_range.py"]
    failed[0]["test"] = names[0]
    (tmp_path / "suite.json").write_text(json.dumps({"failures": failed}))
    assert gpu_suite.main(["--device", "emulator", "--failed", str(tmp_path / "suite.json"), "--out", str(tmp_path),
                           "tests/kernels/test_range.py"]) == 0
    assert json.loads((tmp_path / "suite.json").read_text())["tests"] == 1


def test_a_model_that_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_smoke.main(["--device", "NOWHERE", "--models", "lstm_state", "--out", str(tmp_path)]) == 1
    assert "WRONG lstm_state f32: " in capsys.readouterr().out


def test_kernels_by_time() -> None:
    times = gpu_profile.grouped([("a", 1.0), ("b", 30.0), ("a", 3.0), ("b", 50.0)])
    first, second = gpu_profile.rows(times, 2)
    assert (first["kernel"], first["us"], first["count"], first["each_us"]) == ("b", 40.0, 1.0, 40.0)
    assert second["share"] == pytest.approx(4 / 84)
    row = {"kernels": [first, second], "device_us": 42.0, "host": {"us": 50.0}}
    text = gpu_profile.table({"device": "card", "workloads": {"w": row, "x": {"failed": "Error: no\nmore"}}})
    assert "| 40.0 | 1 | 40.00 | b |" in text and "## x\n\nError: no\n" in text


@pytest.mark.parametrize(("said", "errors"), [
    ("3 passed\n========= ERROR SUMMARY: 0 errors", 0), ("========= ERROR SUMMARY: 2 errors", 2),
    ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 1), ("killed", None),
])
def test_what_the_sanitizer_counts(said: str, errors: int | None) -> None:
    assert gpu_sanitize.read(said, 0)["errors"] == errors


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
    """With the real loading code, from another folder of the project, where NVRTC refuses to compile."""
    pytest.importorskip("cupy")
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    folder = tmp_path / "prepared"
    assert gpu_prepare.main([str(folder), "--wheels", "--only", "tests/kernels/test_range.py"]) == 0
    assert (folder / "kernels.tar.xz").stat().st_size and "bench.gpu --stage" in (folder / "run.sh").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("ovgpu", "cuda_kernels"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(elsewhere)], check=True)
    names = [*gate.table()["range.cu"]]
    done = subprocess.run([sys.executable, "-c", LOADS, str(elsewhere), *names], cwd=tmp_path, capture_output=True,
                          text=True, env={"PATH": "", "HOME": str(tmp_path), "CUPY_CACHE_DIR": str(folder / "kernels")},
                          check=False)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == len(names)
