"""Products of more than eight rows with compressed weights in tiles, on the emulated device against NumPy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.fused import _product_tiles
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused._product_tiles import form
from ovgpu.types import Type
from tests.emulator import cupy_emu

from .test_product_mma import BF16, HALF, multiply, packed, stored

H100, RTX_4090 = 227 << 10, 99 << 10  # bytes of shared memory of a block
PARTIAL = 1 << 22


@pytest.fixture(autouse=True)
def pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of these tests are small; blocks form clusters in those for clusters alone."""
    monkeypatch.setattr(_product_tiles, "pays", lambda *_: True)
    monkeypatch.setattr(Launcher, "has_clusters", False)


def is_tiled(name: str) -> bool:
    return name.startswith("product_tiles<")


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("codes", "kind", "m"),
    [
        (Type.i4, HALF, 9),
        (Type.u4, BF16, 16),
        (Type.i8, HALF, 17),
        (Type.u8, BF16, 32),
        (Type.u4, HALF, 33),
        (Type.i8, BF16, 64),
        (Type.u8, HALF, 65),
        (Type.i4, BF16, 200),
    ],
)
def test_kinds_of_codes(codes: Type, kind: Any, m: int, backend: CudaBackend) -> None:
    """Scales have groups of 128, or one per row; zero points too. N and K are no multiples of a tile's extents."""
    for scale, zero in (((37, 3), None), ((37, 3), (37, 3)), ((37, 1), (37, 1))):
        assert is_tiled(multiply(backend, packed(codes, 37, 384), m, scale, zero, kind))


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("codes", "groups"), [(Type.u4, 3), (Type.i4, 12), (Type.i8, 3), (Type.u8, 12)])
@pytest.mark.parametrize("m", [9, 40])
def test_f32(m: int, codes: Type, groups: int, tf32_backend: CudaBackend) -> None:
    """f32 is split into two terms."""
    assert is_tiled(multiply(tf32_backend, packed(codes, 37, 384), m, (37, groups), (37, groups), np.float32))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("multiprocessors", "m", "kind"), [(132, 9, HALF), (9, 40, HALF), (20, 150, BF16), (132, 20, np.float32)]
)
def test_clusters(
    multiprocessors: int, m: int, kind: Any, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a cluster compute parts of a tile, equal ones or not, with rows behind the last one."""
    monkeypatch.setattr(Launcher, "has_clusters", True)
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    for columns, groups in ((1280, 10), (1408, 11)):
        name = multiply(tf32_backend, packed(Type.u4, 260, columns), m, (260, groups), (260, groups), kind)
        assert is_tiled(name) and name.endswith(", true, true>")


def test_f32_is_exact(backend: CudaBackend) -> None:
    """Unless TF32 is allowed, other kernels compute f32."""
    assert not is_tiled(multiply(backend, packed(Type.i4, 37, 384), 9, (37, 3), None, np.float32))


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("codes", "columns", "group"),
    [(Type.u4, 96, 32), (Type.i4, 192, 64), (Type.u8, 192, 96), (Type.i8, 96, 32), (Type.u4, 512, 256)],
)
def test_sizes_of_groups(codes: Type, columns: int, group: int, backend: CudaBackend) -> None:
    terms = (20, columns // group)
    assert is_tiled(multiply(backend, packed(codes, 20, columns), 20, terms, terms, HALF))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("scale", "zero", "scale_type"),
    [
        (None, None, HALF),
        ((1, 1), None, HALF),
        ((20, 1), (1, 1), np.float32),
        ((1, 4), (20, 2), HALF),
        (None, (20, 4), HALF),
    ],
)
def test_shapes_of_terms(scale: Any, zero: Any, scale_type: Any, backend: CudaBackend) -> None:
    assert is_tiled(multiply(backend, packed(Type.i8, 20, 512), 12, scale, zero, scale_type=scale_type))


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (130, 2080), (255, 288), (256, 256)])
def test_ragged_shapes(rows: int, columns: int, backend: CudaBackend) -> None:
    for m in (9, 31):
        assert is_tiled(multiply(backend, packed(Type.i4, rows, columns), m, (rows, 1)))


@pytest.mark.parametrize("of_x", [1, 3])
def test_batches(of_x: int, backend: CudaBackend) -> None:
    for m in (12, 100):
        assert is_tiled(multiply(backend, packed(Type.u4, 3 * 133, 128, 3), m, (399, 1), (399, 1), of_x=of_x))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("multiprocessors", [1, 3, 10, 132])
def test_divisions_of_work(multiprocessors: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take whole tiles, parts of one tile, or parts of several tiles; the last one to arrive adds them up."""
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    for m in (14, 80):
        assert is_tiled(multiply(backend, packed(Type.i4, 300, 1536), m, (300, 12), None))
    assert is_tiled(multiply(backend, packed(Type.u8, 1100, 640), 14, (1100, 1), (1100, 1)))


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        multiply(backend, packed(Type.i4, 300, 1536), 14, (300, 12), None)
        multiply(tf32_backend, packed(Type.u4, 37, 1920), 40, (37, 15), (37, 15), np.float32)


@pytest.mark.emulator  # a real device has the shared memory that it has
def test_little_shared_memory(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "shared_limit", RTX_4090)
    assert multiply(backend, packed(Type.i4, 300, 1536), 60, (300, 12)).startswith(
        "product_tiles<Nibbles<true>, __half, None, __half, 4, 32, 2, 1,"
    )


def test_f32_of_any_range(tf32_backend: CudaBackend) -> None:
    """Large and small numbers are exact to 16 bits; infinities and NaN are kept."""
    x = np.array([[1e38, 0, 0, 0], [3e-30, 0, 0, 0], [np.inf, 1, 0, 0], [np.nan, 1, 0, 0]], np.float32).repeat(8, 1)
    x = np.concatenate((x, np.zeros((8, 32), np.float32)))
    out, launcher = cupy_emu.empty((1, 12, 8), np.float32), Launcher(tf32_backend.stream, tf32_backend.blas)
    given = [cupy_emu.asarray(np.ones((8, 32), np.int8)), None, None]
    assert _product_tiles.launch(
        launcher, packed(Type.i8, 8, 32), cupy_emu.asarray(x[None]), out, given, cupy_emu.empty(PARTIAL, np.float32)
    )
    (call,) = launcher.calls
    call()
    tf32_backend.synchronize()
    wanted = np.array([np.inf, 24e-30, np.inf, np.nan, *(0 for _ in range(8))], np.float32)  # the first exceeds f32
    np.testing.assert_allclose(out.get()[0], np.broadcast_to(wanted[:, None], (12, 8)), 2**-15)


def launches(backend: CudaBackend, weights: Packed, m: int, scale: tuple[int, int] = (1, 1), skew: int = 0) -> bool:
    """Return whether a product of f16 is launched; x begins ``skew`` elements after a multiple of 16 bytes."""
    codes, scales, _zero = stored(weights, scale, None, HALF)
    x = cupy_emu.empty((m * weights.columns + skew,), HALF)[skew:].reshape(1, m, weights.columns)
    given = [cupy_emu.asarray(codes), cupy_emu.asarray(scales), None]
    out, partial = cupy_emu.empty((1, m, weights.rows), HALF), cupy_emu.empty((1,), np.float32)
    return _product_tiles.launch(Launcher(backend.stream, backend.blas), weights, x, out, given, partial)


def test_other_products(backend: CudaBackend) -> None:
    """Other kernels take more rows, unaligned x, rows of codes that are not vectors, small groups, and tables."""
    assert launches(backend, packed(Type.u4, 40, 64), 256)
    assert not launches(backend, packed(Type.u4, 40, 64), 257)
    assert not launches(backend, packed(Type.u4, 40, 64), 9, skew=1)
    assert not launches(backend, packed(Type.u4, 40, 40), 9) and not launches(backend, packed(Type.i8, 40, 24), 9)
    assert not launches(backend, packed(Type.i4, 40, 64), 9, (40, 4))
    assert not launches(backend, Packed(Type.nf4, 40, 64, tuple(np.linspace(-1, 1, 16).tolist())), 9)


@pytest.mark.parametrize("capability", [75, 80])
def test_capabilities(capability: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "capability", capability)
    assert launches(backend, packed(Type.i4, 40, 64), 9) is (capability == 80)


@pytest.mark.parametrize(
    ("n", "k", "m", "rows", "resident", "share", "blocks"),
    [
        (2048, 8192, 64, 64, 1, 1, 16 * 8),
        (2048, 8192, 16, 16, 2, 1, 16 * 16),
        (16384, 2048, 64, 64, 1, 8, 128),
        (128256, 2048, 64, 64, 2, 8, 264),
        (128256, 2048, 16, 16, 2, 8, 264),
        (3072, 2048, 256, 64, 1, 8, 96),
        (16384, 2048, 256, 64, 2, 8, 264),
        (20480, 2048, 200, 64, 2, 1, 256),
        (9000, 2048, 256, 64, 2, 1, 256),
    ],
)
def test_forms(n: int, k: int, m: int, rows: int, resident: int, share: int, blocks: int) -> None:
    """A tile is divided equally among blocks if there are few, and stays whole if that keeps all blocks busy."""
    found = form(packed(Type.i4, n, k), m, 2, (np.empty((n, k // 128), HALF), None), 132, H100, PARTIAL)
    assert found is not None
    assert (found.rows, found.resident, found.share, found.blocks) == (rows, resident, share, blocks)
    assert found.shared <= H100 if resident == 1 else (found.shared + 1024) * resident <= H100 + 1024


@pytest.mark.parametrize(
    ("n", "k", "m", "blocks", "cluster"),
    [(2048, 8192, 16, 128, 8), (3072, 2048, 64, 96, 4), (4096, 2048, 16, 128, 4), (16384, 2048, 16, 128, 1)],
)
def test_forms_of_clusters(n: int, k: int, m: int, blocks: int, cluster: int) -> None:
    """Clusters have a power of two of blocks, and whole parts of K."""
    found = form(packed(Type.i4, n, k), m, 2, (np.empty((n, k // 128), HALF), None), 132, H100, 1, max_cluster=8)
    assert found is not None and (found.blocks, found.cluster) == (blocks, cluster) and found.shared <= H100


def test_forms_without_memory_for_sums() -> None:
    """Without room for partial sums, tiles stay whole."""
    found = form(packed(Type.i4, 4096, 2048), 16, 2, (None, None), 132, H100, 1)
    assert found is not None and (found.share, found.blocks) == (8, 32)


@pytest.mark.parametrize(
    ("n", "k", "m", "wanted"),
    [
        (2048, 2048, 9, False),
        (2048, 2048, 32, True),
        (2048, 2048, 64, False),
        (2048, 2048, 65, True),
        (2048, 8192, 9, True),
        (16384, 2048, 16, False),
        (16384, 2048, 33, True),
        (128256, 2048, 16, False),
        (128256, 2048, 17, True),
    ],
)
def test_where_it_pays(n: int, k: int, m: int, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Always with clusters, and without them where partial sums take little time."""
    monkeypatch.undo()
    assert _product_tiles.pays(packed(Type.i4, n, k), m, False) is wanted
    assert _product_tiles.pays(packed(Type.i4, n, k), m, True)
