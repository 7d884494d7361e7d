"""What all tests share: the devices they run on."""
from __future__ import annotations

import faulthandler
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.harness import cuda
from tests.harness.recall import load
from tests.harness.replay import DEVICES, EMULATED

pytest_plugins = ("tests.kernels.gate",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    name: str = request.param
    if name == EMULATED:
        request.getfixturevalue("emulated")
    return name


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the emulated device, or of the card in its place (``--device``)."""
    with cuda.registered(request.config.getoption("--device")) as name:
        yield name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("emulator", "arrays", "cuda"), default="emulator",
                     help="what tests of the CUDA backend run on: the emulator, with CuPy's own arrays if wanted, or a "
                     "card through CuPy")
    parser.addoption("--fma", action="store_true", help="emulated kernels join products and the sums that follow, as "
                     "NVRTC's do unless it is told not to")
    parser.addoption("--long", action="store_true", help="forty times as many random cases, on the device as well")
    parser.addoption("--expectations", type=Path, metavar="FILE",
                     help="OpenVINO's judgements, where it is not installed (python -m tests.harness.store FILE)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda":
        for item in items:
            if item.path.name.startswith(("test_broken", "test_failures")):
                item.add_marker(pytest.mark.skip(reason="faults are injected into the emulator alone"))
            elif item.get_closest_marker("emulator"):
                item.add_marker(pytest.mark.skip(reason="looks into the emulator"))


HANGS = 360  # seconds without a new test: more than the timeout, which cannot interrupt everything
EACH = 20  # seconds after which the alarm is set anew; to do it for every test takes as long as short tests do
_set = -float(EACH)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tells where all threads are when a test hangs."""
    global _set
    if time.monotonic() - _set > EACH:
        _set = time.monotonic()
        faulthandler.dump_traceback_later(HANGS, file=item.config.stash.get(fault_handler_stderr_fd_key, 2))


@pytest.fixture(autouse=True, scope="module")
def freeze_objects() -> None:
    """Exempt from garbage collection all objects that exist before a module's tests run.

    These are tens of thousands of collected tests, and caches that earlier modules filled. Every full collection would
    visit them again, and tests of leaks collect hundreds of times.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """A worker that dies ends the run: xdist may wait for ever for the tests of one that it replaced."""
    if getattr(config.option, "maxworkerrestart", "unknown") is None:
        config.option.maxworkerrestart = "0"
    if config.getoption("--fma"):
        os.environ["OVGPU_EMU_FMA"] = "1"  # of worker processes, too
    config.addinivalue_line("markers", "emulator: looks into the emulator, which does not run with --device cuda")
    if config.getoption("--expectations"):
        load(config.getoption("--expectations"))
