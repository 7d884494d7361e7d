"""Whole models on emulated GPUs with few or many multiprocessors, older and newer instructions, and less or more shared
memory. They use other kernels, and grids of other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from tests.emulator import cuda, kernel, runtime
from tests.emulator.limits import SHARED
from tests.harness import cuda as harness
from tests.models.test_models import NAMES, check_calls
from tests.models.test_precision import NOISE, UNITS, errors, roundings

pytestmark = pytest.mark.emulator


class Card(NamedTuple):
    """Properties of an emulated GPU; the capability is 10 * major + minor, as text."""

    capability: str
    multiprocessors: int


CARDS = {"GTX 1650": Card("75", 14), "RTX 5090": Card("120", 170)}
HALF = ["bert", "bilstm", "llama", "llama_int4_asym", "llama_int4_sym", "segformer", "unet", "whisper_decoder"]


@pytest.fixture(params=CARDS)
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of an emulated device with the properties of a GPU."""
    capability, multiprocessors = CARDS[request.param]
    shared = SHARED[f"sm_{capability}"]
    monkeypatch.setattr(cuda.Device, "compute_capability", capability)
    properties = {
        "major": int(capability[:-1]),
        "minor": int(capability[-1]),
        "multiProcessorCount": multiprocessors,
        "sharedMemPerBlockOptin": shared,
    }
    monkeypatch.setattr(runtime, "PROPERTIES", runtime.PROPERTIES | properties)
    monkeypatch.setattr(kernel, "MULTIPROCESSORS", multiprocessors)
    monkeypatch.setattr(kernel, "MAX_COOPERATIVE_BLOCKS", 2 * multiprocessors)
    monkeypatch.setattr(kernel, "SHARED_LIMIT", shared)
    with harness.registered("emulator") as name:
        yield name


@pytest.mark.drawn(48)
@pytest.mark.parametrize("name", NAMES)
def test_models(name: str, card: str) -> None:
    check_calls(name, card, 2)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", HALF)
def test_half(name: str, card: str) -> None:
    assert max(errors(name, "f16", card)) < NOISE * np.sqrt(roundings(name, "f16")) * UNITS["f16"]
