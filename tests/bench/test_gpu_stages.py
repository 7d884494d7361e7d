"""Stages of `bench.gpu`, run on the emulator; and kernels recorded here for a GPU on another machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, gpu_convolution, gpu_counters, gpu_prepare, gpu_profile, gpu_sanitize, gpu_smoke, gpu_suite
from tests.emulator import nvrtc
from tests.kernels import gate

ROOT = Path(__file__).parents[2]


def test_all_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage writes a few files that are small enough to copy home."""
    modules: list[str] = []
    for stage in range(len(gpu.BUDGETS)):
        out = tmp_path / str(stage)
        status = gpu.main(["--stage", str(stage), "--emulated", "--tiny", "--out", str(out)])
        output = capsys.readouterr().out
        assert status == 0 and len(output) < gpu.SUMMARY + 2000, output
        modules += re.findall("^==== (\\w+): done$", output, re.MULTILINE)
        files = [path for path in out.rglob("*") if path.is_file() and path.name != "stages.log"]
        assert 0 < len(files) <= 4 and max(path.stat().st_size for path in files) < 10 << 20
    assert sorted(modules) == sorted([
        "gpu_smoke", "gpu_suite", "gpu_llama", "gpu_vision", "gpu_peers", "gpu_profile", "gpu_counters", "gpu_sanitize",
        "gpu_peers", "gpu_serving"])
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*/*.json")}
    assert found["smoke"]["lstm_state f32"]["right"] and found["smoke"]["lstm_state f16"]["right"]
    assert found["suite"]["counts"]["passed"] == found["suite"]["tests"] > 0 and not found["suite"]["failures"]
    assert found["llama"]["items"]["int4 decode 16"]["appended"]
    assert found["vision"]["items"]["lstm_state"]["engines"]["ovgpu"]["right"]
    assert found["profile"]["workloads"]["lstm_state"]["host"]["us"] > 0
    served = found["serving"]["lstm_b1"]
    assert [*served["per_second"]] == ["1", "2", "4", "8"] and all(served["per_second"].values())
    assert served["starts"].keys() == {"cold", "cached"} and served["starts"]["cold"]["first"] > 0


NCU = """#!{python}
import sys, pathlib
arguments = sys.argv[1:]
function, log = (arguments[arguments.index(name) + 1] for name in ("--kernel-name", "--log-file"))
if function == "softmax_rows":
    print("no counters here")
    sys.exit(1)
metrics = arguments[arguments.index("--metrics") + 1].split(",")
rows = [["ID", "Kernel Name", *metrics], ["", "", *["unit"] * len(metrics)],
        ["0", function + "<a, b>", "1,500", *["50"] * (len(metrics) - 1)],
        ["1", function + "<c>", "2,500", *["60.5"] * (len(metrics) - 1)]]
lines = [",".join('"' + cell + '"' for cell in row) for row in rows]
pathlib.Path(log).write_text("\\n".join(["==PROF== Connected", *lines]))
"""


def test_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Counters of ovgpu's own kernels are read once each; a kernel without counters does not stop the others."""
    tool = tmp_path / "ncu"
    tool.write_text(NCU.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def kernels(**shares: float) -> dict[str, Any]:
        return {"kernels": [{"kernel": f"void {name}<float>(int)", "share": share} for name, share in shares.items()]}

    profile = {"workloads": {"one": kernels(softmax_rows=0.5, attend_split=0.2, cutlass=0.9), "broken": {"failed": ""},
                             "two": kernels(attend_split=0.7, ovgpu_add=0.1, copy_dense=0.05)}}
    assert [row[:2] for row in gpu_counters.choose(profile, 3)] == [
        ("attend_split", "two"), ("softmax_rows", "one"), ("ovgpu_add", "two")]
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    arguments = ["--profile", str(tmp_path / "profile.json"), "--out", str(tmp_path)]
    assert gpu_counters.main([*arguments, "--kernels", "3"]) == 0
    first, second, third = json.loads((tmp_path / "counters.json").read_text())
    assert (first["kernel"], first["us"], first["memory %"]) == ("attend_split<c>", 2.5, 60.5)
    assert "no counters here" in second["failed"] and third["workload"] == "two"
    text = (tmp_path / "counters.md").read_text()
    assert "| 2.5 | 60.5 | 60.5 |" in text and "softmax_rows: no counters here" in text
    assert gpu_counters.main([*arguments, "--budget", "0"]) == 0
    assert json.loads((tmp_path / "counters.json").read_text())[0]["failed"] == "not begun, the time is up"


def test_convolutions_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layers are those of ResNet-50, and the trial times each layout."""
    assert sum(layer.count for layer in gpu_convolution.layers()) == 53
    assert gpu_convolution.main(["--emulated", "--batches", "2", "--out", str(tmp_path / "found.json")]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["layers"].values()
    assert all(row[layout]["us"] > 0 for layout in gpu_convolution.LAYOUTS)
    assert "batch 2, all layers" in capsys.readouterr().out


def test_program_profiled_by_ncu(capsys: pytest.CaptureFixture[str]) -> None:
    """The program that `ncu` profiles runs; without a profile, the message names gpu_profile."""
    assert gpu_counters.main(["--run", "lstm_state", "--emulated", "--tiny"]) == 0
    assert gpu_counters.main(["--profile", "/nowhere"]) == 0
    assert "run bench.gpu_profile first" in capsys.readouterr().out


def test_a_part_that_fails_or_hangs_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """Failing parts come first in the summary, and a part that hangs is stopped."""
    good = ["--emulated", "--models", "lstm_state", "--out", str(tmp_path)]
    monkeypatch.setattr(gpu, "parts", lambda stage, options: [
        gpu.Part("gpu_smoke", good), gpu.Part("gpu_nowhere", [])])
    assert gpu.main(["--stage", "0", "--budget", "60", "--out", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert output.index("gpu_nowhere: 1") < output.index("3 of 3 right")
    part = gpu.Part("gpu_smoke", good)
    gpu.run(part, 0.1, tmp_path / "log")
    assert part.status == "stopped: out of time"


def failure(test: str, raised: str) -> dict[str, str]:
    return {"test": test, "raised": raised, "trace": ""}


def test_failures_of_one_kind_are_grouped() -> None:
    found = [failure(f"tests/a.py::t{n}", f"AssertionError: {n} of 21 values differ at 0x7f{n}0") for n in range(3)]
    found.insert(1, failure("tests/b.py::u", "TypeError: no"))
    groups = gpu_suite.groups(found)
    assert [len(failures) for _, failures in groups] == [3, 1]
    result: dict[str, Any] = {"counts": {"failed": 4}, "tests": 9, "seconds": 1, "unfinished": 0, "failures": found,
                              "lost": ["tests/c.py: died"]}
    lines = list(gpu_suite.report(result))
    assert lines[1].startswith("3 x AssertionError") and lines[-1] == "tests/c.py: died"


def test_failed_tests_can_be_run_again(tmp_path: Path) -> None:
    failed = [failure("tests/kernels/test_range.py::test_no_elements", "")]
    names = gpu_suite.collect(["tests/kernels/test_range.py"], "emulator")["tests/kernels/test_range.py"]
    failed[0]["test"] = names[0]
    (tmp_path / "suite.json").write_text(json.dumps({"failures": failed}))
    command = [sys.executable, "-m", "bench.gpu_suite", "--device", "emulator", "--out", str(tmp_path),
               "--failed", str(tmp_path / "suite.json"), "tests/kernels/test_range.py"]
    subprocess.run(command, cwd=ROOT, check=True)  # own process: forks are unsafe with threads
    assert json.loads((tmp_path / "suite.json").read_text())["tests"] == 1


def test_a_failing_model_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(("output", "errors"), [
    ("3 passed\n========= ERROR SUMMARY: 0 errors", 0), ("========= ERROR SUMMARY: 2 errors", 2),
    ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 1), ("killed", None),
])
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
