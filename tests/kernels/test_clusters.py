"""Kernels whose blocks form clusters, on emulated cards with smaller ones (MIG slices, cut-down devices), and on a card
that refuses a launch although it fits by the driver's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, driver_launch, kernels
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.convolution import _implicit_gemm
from ovgpu.ops.fused import _product_tiles
from ovgpu.ops.normalization import _group_norm
from ovgpu.ops.normalization.group_normalization import GroupNormalization
from ovgpu.types import Type
from tests.emulator import cupy_emu, driver_emu
from tests.emulator.driver_emu import largest_cluster

from .test_attention import attend
from .test_implicit_gemm import Case, convolve
from .test_pixel_normalization import normalize
from .test_product_tiles import multiply, packed

pytestmark = pytest.mark.emulator  # a real device has the clusters that it has
HALF = np.float16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let kernels split small work, and ask anew what fits on the device."""
    monkeypatch.setattr(_product_tiles, "pays", lambda *_: True)
    monkeypatch.setattr(_implicit_gemm, "MEMORY_COST", (0, 0))
    monkeypatch.setattr(_implicit_gemm, "CLUSTER_COST", (0, 0))
    monkeypatch.setattr(_group_norm, "PART_PIXELS", 1)
    monkeypatch.setattr(_group_norm, "ALONE_PIXELS", 0)

    def forget() -> None:
        kernels.of_file.cache_clear()
        kernels._largest_cluster.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets the blocks of a cluster and the driver's answer of each launch with attributes."""
    found: list[tuple[int, int]] = []
    launch = driver_emu.cuLaunchKernelEx

    def noted(config: Any, *arguments: Any) -> Any:
        (status,) = launch(config, *arguments)
        found.append((driver_emu._cluster_of(config), int(status)))
        return (status,)

    monkeypatch.setattr(driver_emu, "cuLaunchKernelEx", noted)
    return found


def streamed(backend: CudaBackend) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 8)
        attend(backend, (1, 1, 4, 1, 40), (1, 1, 1, 2100, 40), (1, 1, 1, 2100, 40), (1, 1, 1, 1, 2100), kind=HALF)


def tiled(backend: CudaBackend) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 8)
        attend(backend, (1, 1, 3, 20, 16), (1, 1, 1, 2100, 16), (1, 1, 1, 2100, 16), (1, 1, 3, 20, 2100), kind=HALF)


def compressed(backend: CudaBackend) -> None:
    multiply(backend, packed(Type.u4, 260, 2816), 9, (260, 22), (260, 22), HALF)


def convolved(backend: CudaBackend, stages: int = 8) -> None:
    """Convolve with so many stages of 128 bytes of K."""
    convolve(backend, Case((1, 128 * stages, 1, 40), (72, 128 * stages, 1, 1)))


def normalized(backend: CudaBackend) -> None:
    normalize(backend, GroupNormalization(num_groups=4, epsilon=1e-3), (1, 24, 40, 17), HALF)


KERNELS: dict[str, tuple[Callable[[CudaBackend], None], int]] = {  # and the blocks of a cluster where it is free
    "attend_stream": (streamed, 16),
    "attend_mma": (tiled, 16),
    "product_tiles": (compressed, 8),
    "implicit_gemm": (convolved, 8),
    "normalize_pixels": (normalized, 8),
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("largest", [1, 4, 8, 16])
def test_cards(largest: int, name: str, backend: CudaBackend, launched: list[tuple[int, int]]) -> None:
    """Results are right on all cards; no launch is refused."""
    run, free = KERNELS[name]
    with largest_cluster(largest):
        run(backend)
    assert {status for _, status in launched} <= {0}
    assert max([cluster for cluster, _ in launched], default=1) == min(largest, free)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", KERNELS)
def test_launches_that_are_refused(name: str, backend: CudaBackend, launched: list[tuple[int, int]]) -> None:
    """Error 912 although the driver found room: blocks exchange their sums through memory, from the first launch on.
    That size is not tried again."""
    run, free = KERNELS[name]
    with largest_cluster(16, launched=1):
        run(backend)
        assert [status for cluster, status in launched if cluster > 1] == [912]
        run(backend)
    assert [cluster for cluster, status in launched if status] == [free]


def test_clusters_that_the_driver_does_not_allow(backend: CudaBackend, launched: list[tuple[int, int]]) -> None:
    """More than 8 blocks need an attribute of the kernel."""
    with largest_cluster(16, allowed=False):
        streamed(backend)
    assert {cluster for cluster, _ in launched} == {8}


def test_shared_memory_of_large_clusters(backend: CudaBackend) -> None:
    """A cluster of 16 fits with small blocks only, as on an H100."""
    name = "attend_mma<__half, NONE, 16, 16, 1, 64, 8, int, 2, __half, IN_CLUSTER>"
    kernel = kernels.of_file("attention_mma.cu", name)
    assert kernel.fits_cluster((128,), 100 << 10, 16) and not kernel.fits_cluster((128,), 224 << 10, 16)
    assert kernel.fits_cluster((128,), 224 << 10, 8)


def test_the_driver_is_asked_once(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per kernel and size, whatever the number of launches."""
    asked = []
    fits = driver_launch.fits
    monkeypatch.setattr(driver_launch, "fits", lambda *given: asked.append(given[1:]) or fits(*given))
    for _ in range(2):
        streamed(backend)
    assert [(block, cluster) for block, _, cluster in asked] == [((32,), 16), ((128,), 16)]


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_sizes_that_are_no_powers_of_two(
    size: int, backend: CudaBackend, launched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions and norms take clusters of any number of blocks."""
    for order in ("ascending", "descending", 7):
        launched.clear()
        with cupy_emu.thread_order(order):
            convolved(backend, size)
            monkeypatch.setattr(_group_norm, "PORTABLE_CLUSTER", size)
            normalized(backend)
        assert {cluster for cluster, _ in launched} == {size}
