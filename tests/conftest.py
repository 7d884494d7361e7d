"""Fixtures and options of all tests, such as the devices under test."""

from __future__ import annotations

import faulthandler
import gc
import os
import time
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: BLAS threads spin while they wait

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from ovgpu.backends.cuda import CudaBackend
from ovgpu.compile import devices
from tests.emulator import state
from tests.harness import cuda, draws
from tests.harness.cases import runs
from tests.harness.recall import load
from tests.harness.replay import DEVICES, EMULATED

TF32 = "EMULATED_TF32"  # name of a device
FIRST = "tests/integrations/ray/test_cluster.py"  # it waits: other files run beside it

pytest_plugins = ("tests.kernels.gate",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Return the device under test."""
    name: str = request.param
    if name == EMULATED:
        request.getfixturevalue("emulated")
    return name


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of the emulated device, or of the card in its place (``--device``)."""
    with cuda.registered(request.config.getoption("--device")) as name:
        yield name


@pytest.fixture(scope="module")
def two_cards() -> Iterator[None]:
    """Emulate two cards, NVIDIA.0 and NVIDIA.1. A module that uses `emulated` as well cannot use them."""
    with cuda.cards(2):
        yield


@pytest.fixture(scope="module")
def tf32_device(emulated: str) -> Iterator[str]:
    """Yield the name of a device like `emulated`, which may round f32 to TF32."""
    devices.register_backend(TF32, lambda: CudaBackend(tf32=True))
    yield TF32
    devices.unregister_backend(TF32)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("emulator", "arrays", "cuda"),
        default="emulator",
        help="device for tests of the CUDA backend: the emulator, the emulator with CuPy's own arrays, or "
        "a card through CuPy",
    )
    parser.addoption(
        "--fma",
        action="store_true",
        help="emulated kernels contract products and the sums that follow, as NVRTC's do by default",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="--all-rows, and forty times as many random cases, on the device as well",
    )
    parser.addoption(
        "--all-rows",
        action="store_true",
        help="all variants and rows of every test, without draws; --long and --device cuda do so, too",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="in a minute: one case of each family of operations, one "
        "stateful model on the emulated card, and the command line",
    )
    parser.addoption(
        "--landing",
        metavar="WHEN",
        help="when asynchronous copies and stores of emulated kernels land: "
        "early, late, at times drawn with a seed (a number above 1), or all: each kernel runs with all of "
        "these. By default, each test draws one by its name; with --long, all",
    )
    parser.addoption(
        "--expectations",
        type=Path,
        metavar="FILE",
        help="OpenVINO's judgements, where it is not installed (python -m tests.harness.store FILE)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, which would visit all tests found so far again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _draws(config: pytest.Config) -> bool:
    """Return whether a part of the tests runs. A run on a card is rare, and is not to miss anything."""
    all_rows = config.getoption("--all-rows") or config.getoption("--long")
    return not all_rows and config.getoption("--device") != "cuda"


@pytest.hookimpl(tryfirst=True)  # pytest reads the mark afterwards, and then ignores the parameters of `device`
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests that `check` has made."""
    cases = getattr(metafunc.function, "cases", None)
    if isinstance(cases, tuple):
        chosen = runs(cases, every=not _draws(metafunc.config))
        metafunc.definition.add_marker(
            pytest.mark.parametrize(
                ("case", "variant", "device"),
                chosen,
                indirect=["device"],
                ids=[f"{case.name}-{variant}-{device}" for case, variant, device in chosen],
            )
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out that have no tests for --quick: importing all takes seconds."""
    file = collection_path
    skipped = config.getoption("--quick") and file.match("test_*.py") and not draws.is_quick(file)
    return True if skipped else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    for item in items:
        if draws.is_on_card(item):
            item.add_marker("card")
    if config.getoption("--quick"):
        _deselect(config, items, draws.slow(items))
    elif _draws(config):
        _deselect(config, items, draws.surplus(items))
    if config.getoption("--device") == "cuda":
        for item in items:
            if item.path.name.startswith(("test_broken", "test_failures")):
                item.add_marker(pytest.mark.skip(reason="faults are injected into the emulator alone"))
            elif item.get_closest_marker("emulator"):
                item.add_marker(pytest.mark.skip(reason="looks into the emulator"))


def _deselect(config: pytest.Config, items: list[pytest.Item], surplus: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(surplus))
    items[:] = [item for item in items if item not in surplus]


@pytest.fixture(autouse=True)
def landing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set when asynchronous copies and stores of emulated kernels land in this test; see ``--landing``."""
    when = _landing(request.node)
    with state.landing(int(when) if when.isdigit() else when):
        yield


def _landing(item: pytest.Item) -> str:
    """Return when transfers land in a test: by default early, late, or, in half of all tests, at drawn times."""
    given = item.config.getoption("--landing") or ("all" if item.config.getoption("--long") else None)
    if given is not None:
        return str(given)
    drawn = zlib.crc32(item.nodeid.encode())
    return ("early", "late", str(2 + drawn // 4 % 1000), str(2 + drawn // 4 % 1000))[drawn % 4]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report when transfers landed in a test that failed."""
    report = yield
    if report.failed and report.when == "call":
        report.sections.append(("emulator", f"repeat with --landing {_landing(item)}"))
    return report


HANG_SECONDS = 360  # without a new test; more than the timeout, which cannot interrupt everything
RESET_SECONDS = 20  # between resets of the alarm; a reset takes as long as a short test
_last_reset = -float(RESET_SECONDS)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Print the stacks of all threads when a test hangs."""
    global _last_reset
    if time.monotonic() - _last_reset > RESET_SECONDS:
        _last_reset = time.monotonic()
        faulthandler.dump_traceback_later(HANG_SECONDS, file=item.config.stash.get(fault_handler_stderr_fd_key, 2))


@pytest.fixture(autouse=True, scope="module")
def freeze_objects() -> None:
    """Exempt from garbage collection all objects that exist before a module's tests run.

    These are tens of thousands of collected tests, and caches that earlier modules filled. Every full collection would
    visit them again, and tests of leaks collect hundreds of times.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Set options and markers. A worker that dies ends the run: xdist may wait for ever for the worker it replaced."""
    gc.set_threshold(20_000)  # not 700 new objects: that took twice the time for garbage
    if getattr(config.option, "maxworkerrestart", "unknown") is None:
        config.option.maxworkerrestart = "0"
    if hasattr(config.option, "loadscopereorder"):  # xdist would begin with files of many tests, not with slow ones
        config.option.loadscopereorder = False
    landing = config.getoption("--landing")
    if landing is not None and landing not in ("early", "late", "all") and not landing.isdigit():
        raise pytest.UsageError(f"--landing {landing}: early, late, all, or a number")
    if config.getoption("--fma"):
        os.environ["OVGPU_EMU_FMA"] = "1"  # of worker processes, too
    config.addinivalue_line(
        "markers",
        "drawn(n): one of n rows of parameters runs, drawn by a hash of its name; all with --all-rows and --long",
    )
    config.addinivalue_line("markers", "long: runs with --all-rows and --long alone")
    config.addinivalue_line("markers", "card: runs on the emulated card, or looks into the emulator (set by conftest)")
    config.addinivalue_line("markers", "quick: runs with --quick")
    config.addinivalue_line("markers", "emulator: looks into the emulator, which does not run with --device cuda")
    if config.getoption("--expectations"):
        load(config.getoption("--expectations"))
