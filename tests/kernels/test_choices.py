"""Choices among kernels: every answer gives right results, and the tuner keeps the fastest one in a file per card."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, choices, device, rt, tuner
from ovgpu.backends.cuda.choices import Choices
from ovgpu.backends.cuda.kernel_cache import KernelStore
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.cli import main
from ovgpu.compile import devices
from ovgpu.ops.activation.activation import Relu
from ovgpu.ops.base.recorder import T, first_of
from ovgpu.runtime.backend import Call
from tests.emulator import kernel, runtime
from tests.emulator.limits import SHARED
from tests.harness.replay import EMULATED
from tests.kernels.recorded import kernel_name
from tests.models.test_models import DATA
from tests.models.test_precision import NOISE, UNITS, errors, roundings

pytestmark = pytest.mark.emulator
CARD = "choices-ovgpu-emulated-device.json"


class Numbered(Choices):
    """Choices of the answer of a number to each question, or of the last one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.asked = number, set[str]()

    def choose(self, question: str, answers: Mapping[str, T]) -> T:
        self.asked.add(question)
        return list(answers.values())[min(self.number, len(answers) - 1)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks have only the shared memory that all cards of compute capability 8.0 and more have."""
    monkeypatch.setattr(runtime, "PROPERTIES", runtime.PROPERTIES | {"sharedMemPerBlockOptin": SHARED["sm_86"]})
    monkeypatch.setattr(kernel, "SHARED_LIMIT", SHARED["sm_86"])


@pytest.fixture
def open_backend(emulated: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], CudaBackend]], None]:
    """Return a function that lets the emulated device have other backends."""
    return lambda factory: monkeypatch.setitem(devices._backends, EMULATED, factory)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["llama_int4_sym", "resnet", "whisper_decoder"])
def test_every_answer_is_right(name: str, number: int, open_backend: Any) -> None:
    chosen = Numbered(number)
    open_backend(lambda: CudaBackend(choices=chosen))
    assert max(errors(name, "f16", EMULATED)) < NOISE * np.sqrt(roundings(name, "f16")) * UNITS["f16"]
    assert chosen.asked


SECONDS = {"slow": 3.0, "fast": 2.0, "small": 1.98, "large": 1.0}


@dataclass(frozen=True)
class Kernel:
    """A kernel that returns its name."""

    name: str

    def __call__(self, grid: int, block: int) -> str:
        return self.name


class Steps(Launcher):
    """Recorder of a step with questions that depend on answers; its kernels have known `SECONDS`."""

    def __init__(self, answers: Choices) -> None:
        super().__init__(None, None, choices=answers)

    def run(self, name: str) -> bool:
        self.calls.append(partial(Kernel(name), 1, 1))
        return True

    def tiles(self) -> bool:
        return self.run(self.choose("tiles", {"fast": "fast", "small": "small", "large": "large", "none": "fast"}))

    def record(self) -> Sequence[Call]:
        first_of(self, "form", {"slow": lambda: self.run("slow"), "tiles": self.tiles})
        return self.calls


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Time the kernels of `Steps`. Return their seconds, which may be changed."""
    seconds = dict(SECONDS)
    monkeypatch.setattr(tuner.Tuner, "_seconds", lambda self, calls: sum(seconds[call()] for call in calls))
    return seconds


def measure() -> tuner.Measured:
    found = tuner.Tuner(CudaBackend())
    found.for_request()._measure(lambda answers: Steps(answers).record())
    return found.found


def test_the_fastest_answers_are_chosen(emulated: str, timed: dict[str, float]) -> None:
    """A question that only the chosen answer asks is measured as well."""
    found = measure()
    assert found.choices.known == {"form": "tiles", "tiles": "large"}
    assert found.seconds == {
        "form": {"slow": 3.0, "tiles": 2.0},
        "tiles": {name: timed[name] for name in ("fast", "small", "large")},
    }


def test_a_small_gain_does_not_count(emulated: str, timed: dict[str, float]) -> None:
    timed["large"] = 5.0
    assert measure().choices.known == {"form": "tiles", "tiles": "fast"}
    timed["slow"] = 2.0
    assert measure().choices.known == {"form": "slow"}


def test_the_first_attempt_that_can_is_taken() -> None:
    done = []

    def attempt(name: str, can: bool) -> Callable[[], bool]:
        return lambda: bool(done.append(name)) or can

    attempts = {"a": attempt("a", False), "b": attempt("b", True), "c": attempt("c", False)}
    for known, expected in (({}, "ab"), ({"q": "c"}, "cab"), ({"q": "b"}, "b"), ({"q": "unknown"}, "ab")):
        done.clear()
        assert first_of(Steps(Choices(known)), "q", attempts)
        assert "".join(done) == expected
    assert not first_of(Steps(Choices()), "q", {"a": attempts["a"]})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Measure each answer once."""
    monkeypatch.setattr(tuner, "ROUNDS", 1)
    monkeypatch.setattr(tuner, "REPEATS", 1)
    yield


@pytest.mark.long
def test_the_command(
    emulated: str,
    quick: None,
    open_backend: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command writes a file, which later programs read, and another model's choices are added to it."""
    open_backend(lambda: CudaBackend(kernels=KernelStore(str(tmp_path))))
    usual = tuner.Tuner._seconds

    def seconds(self: tuner.Tuner, calls: Sequence[Call]) -> float:
        assert usual(self, calls) > 0
        return 1.0 if any(kernel_name(call).startswith("attend_mma<") for call in calls) else 2.0

    monkeypatch.setattr(tuner.Tuner, "_seconds", seconds)
    model = str(DATA / "llama_int4_sym")
    assert main(["tune", model, "-d", emulated, "--precision", "f16", "--prompt", "20"]) == 0
    output = capsys.readouterr().out
    assert "attention float16" in output and str(tmp_path / CARD) in output
    found = json.loads((tmp_path / CARD).read_text())
    assert {name for question, name in found["choices"].items() if "20 queries" in question} == {"tiles"}
    assert main(["tune", str(DATA / "resnet"), "-d", emulated, "--shape", "[1,3,32,32]", "--precision", "f16"]) == 0
    assert found["choices"].items() < json.loads((tmp_path / CARD).read_text())["choices"].items()
    assert CudaBackend(kernels=KernelStore(str(tmp_path))).choices.known.items() > found["choices"].items()


def test_memory_of_early_kernels(emulated: str, quick: None) -> None:
    """The tuner times an early kernel with as much shared memory as there is, and with the driver's choice."""
    found = tuner.Tuner(CudaBackend())
    carveouts = []

    def record(answers: Choices) -> Sequence[Call]:
        launcher = Launcher(found.stream, found.blas, choices=answers)
        launcher.elementwise(Relu(), [x], x)
        carveouts.append(launcher.calls[0].keywords["driver"].carveout)
        return launcher.calls

    with found.active():
        x = rt.cupy().zeros((4, 4), np.float32)
        found._measure(record)
    ((question, times),) = found.found.seconds.items()
    assert question.startswith("shared memory of ovgpu_relu ") and list(times) == ["the most", "the driver's"]
    assert set(carveouts) == {True, False}
    name = found.found.choices.known[question]
    assert record(Choices({question: name}))[0].keywords["driver"].carveout is (name == "the most")


def test_calls_that_cannot_be_captured(emulated: str, quick: None) -> None:
    """They run one by one, as often as those of a graph."""
    found, ran = tuner.Tuner(CudaBackend()), []

    def call() -> None:
        ran.append(found.stream.is_capturing())
        if ran[-1]:
            raise RuntimeError("no capture")

    with found.active():
        assert found._seconds([call]) > 0
    assert ran.count(False) == 1 + tuner.ROUNDS * (tuner.REPEATS + 1)


def test_only_cards_are_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(DATA / "unet"), "-d", "CPU"]) == 1
    assert "kernels are chosen on NVIDIA cards, not on CPU" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": "0", "choices": {}}'])
def test_files_that_cannot_be_used(text: str, emulated: str, tmp_path: Path) -> None:
    (tmp_path / CARD).write_text(text)
    with pytest.warns(RuntimeWarning, match="usual kernels are used; `ovgpu tune` measures again"):
        assert choices.measured(KernelStore(str(tmp_path)), 0).known == {}


def test_files(emulated: str, tmp_path: Path) -> None:
    store = KernelStore(str(tmp_path / "folder"))
    file = choices.path(store, 0)
    assert file is not None and file.name == CARD and choices.measured(store, 0).known == {}
    choices.write(file, Choices({"b": "1", "a": "2"}))
    assert list(choices.measured(store, 0).known.items()) == [("a", "2"), ("b", "1")]
    assert choices.path(KernelStore(), 0) is None
    assert device.card(0).name.lower().replace(" ", "-") in file.name
