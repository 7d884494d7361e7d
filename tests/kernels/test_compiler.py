"""Compilation of kernels on threads: several in a program, side by side, while later steps are bound."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import compiler, elementwise, kernel_cache, kernels
from ovgpu.backends.cuda.compiler import Code, Queue, Target
from ovgpu.backends.cuda.kernel_cache import Binary, KernelStore
from tests.emulator import cupy_emu, nvrtc
from tests.harness.cuda import bound
from tests.harness.ir import Net

SECONDS = 60  # that a test waits at most


class Nvrtc:
    """CuPy with a compiler that records the names in each program, and rejects sources that contain "wrong".

    Programs whose source contains "slow" wait until `go` is set.
    """

    def __init__(self) -> None:
        self.programs: list[list[str]] = []
        self.started, self.go = threading.Semaphore(0), threading.Event()
        options = SimpleNamespace(assemble_cupy_compiler_options=lambda options: options)
        self._core = SimpleNamespace(core=options)
        self.cuda = SimpleNamespace(Device=lambda number: nullcontext(), compiler=self)

    def compile_using_nvrtc(
        self, source: str, options: Any, arch: Any, file: str, names: tuple[str, ...], *_: Any, **__: Any
    ) -> tuple[bytes, dict[str, str]]:
        self.programs.append([*names] or source.split())
        self.started.release()
        if "slow" in source:
            assert self.go.wait(SECONDS)
        if "wrong" in source or "wrong" in names:
            raise ValueError(f"error in {self.programs[-1]}")
        return source.encode(), {name: f"_{name}" for name in names}


class Asked:
    """Kernels that were asked for while the threads were busy."""

    def __init__(self, threads: int) -> None:
        self.queue, self.nvrtc, self.threads = Queue(), Nvrtc(), threads
        self.target = Target(self.nvrtc, 0, KernelStore())
        self.busy = [self.ask(f"slow{n}", f"slow{n}", f"slow{n}") for n in range(threads)]
        for _ in range(threads):
            assert self.nvrtc.started.acquire(timeout=SECONDS)

    def ask(
        self, source: str, name: str, *flags: str, exported: bool = False, target: Target | None = None
    ) -> Future[Binary]:
        return self.queue.submit(
            Code(source, name, flags, exported), f"{source} {name}", target or self.target, self.threads
        )

    def programs(self) -> list[list[str]]:
        """Let the threads go on; return the programs that they have compiled since, sorted, once all are done."""
        self.nvrtc.go.set()
        while self.queue._running:
            for job in list(self.queue._running.values()):
                job.done.exception(SECONDS)
        return sorted(self.nvrtc.programs[self.threads :])


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    with patch.object(kernel_cache, "folder", lambda store: Path(store.folder) if store.folder else None):
        yield


def test_instances_of_a_file_share_a_program() -> None:
    asked = Asked(1)
    done = [asked.ask("file", name) for name in "abc"]
    other = asked.ask("other file", "a")
    assert asked.programs() == [["a"], ["a", "b", "c"]]
    assert [x.result() for x in done] == [Binary(f"_{name}", b"file") for name in "abc"]
    assert other.result() == Binary("_a", b"other file")


def test_generated_kernels_share_a_program() -> None:
    """Kernels of the same name do not."""
    asked = Asked(1)
    done = [asked.ask(source, source[0], exported=True) for source in ("a1", "b1", "a2", "c1")]
    assert asked.programs() == [["a1", "b1", "c1"], ["a2"]]
    assert [x.result().symbol for x in done] == ["a", "b", "a", "c"]
    assert done[0].result().code == b"a1\nb1\nc1"


def test_what_differs_is_compiled_apart() -> None:
    asked = Asked(1)
    asked.ask("file", "a")
    asked.ask("file", "b", "--fmad=false")
    asked.ask("file", "c", exported=True)
    asked.ask("file", "d", target=Target(asked.nvrtc, 1, asked.target.store))
    asked.ask("file", "e", target=Target(asked.nvrtc, 0, KernelStore()))
    assert asked.programs() == [["a"], ["b"], ["d"], ["e"], ["file"]]


def test_idle_threads_take_a_share() -> None:
    """The first thread that is free leaves work for those that will be started."""
    asked = Asked(1)
    asked.threads = 4
    with patch.object(threading.Thread, "start", side_effect=lambda: None):  # started, but no job taken yet
        for name in "abcdef":
            asked.ask("file", name)
        assert asked.queue._threads == 4
    asked.queue._threads = 2  # two have ended
    assert [job.code.name for job in asked.queue._take(4)] == ["a", "b"]
    assert [job.code.name for job in asked.queue._take(2)] == ["c", "d", "e", "f"]
    asked.nvrtc.go.set()


def test_programs_are_bounded() -> None:
    asked = Asked(1)
    for number in range(2 * compiler.MAX_KERNELS + 1):
        asked.ask("file", f"{number:02}")
    assert [len(program) for program in asked.programs()] == [compiler.MAX_KERNELS, compiler.MAX_KERNELS, 1]


def test_the_longest_source_comes_first() -> None:
    asked = Asked(1)
    for source in ("short", "the longest", "longer"):
        asked.ask(source, source)
    asked.programs()
    assert asked.nvrtc.programs[1:] == [["the longest"], ["longer"], ["short"]]


def test_threads_work_side_by_side_and_end() -> None:
    asked = Asked(3)
    names = {thread.name for thread in threading.enumerate()}
    assert "ovgpu compiler" in names and asked.queue._threads == 3
    asked.ask("file", "a")
    assert asked.programs() == [["a"]]
    for thread in threading.enumerate():
        if thread.name == "ovgpu compiler":
            thread.join(SECONDS)
    assert asked.queue._threads == 0
    asked.threads = 1
    assert asked.ask("file", "b").result(SECONDS).symbol == "_b"


def test_a_wrong_kernel_does_not_harm_others() -> None:
    asked = Asked(1)
    first, wrong, last = (asked.ask("file", name) for name in ("a", "wrong", "b"))
    assert asked.programs() == [["a"], ["a", "wrong", "b"], ["b"], ["wrong"]]
    assert (first.result().symbol, last.result().symbol) == ("_a", "_b")
    assert str(wrong.exception()) == "error in ['wrong']"
    assert asked.ask("file", "wrong").exception(SECONDS) is not wrong.exception()  # it is compiled again


def test_a_kernel_that_is_being_compiled_is_not_compiled_again() -> None:
    asked = Asked(1)
    done = [asked.ask("file", "a") for _ in range(3)]
    assert asked.programs() == [["a"]] and done[0] is done[1] is done[2]


def test_without_threads_kernels_are_compiled_at_once() -> None:
    asked = Asked(0)
    with patch.object(threading.Thread, "start", side_effect=AssertionError):
        assert asked.ask("file", "a").done() and asked.ask("file", "wrong").done()


def test_when_no_thread_can_be_started() -> None:
    """As when the interpreter exits."""
    asked = Asked(0)
    asked.threads = 2
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        assert asked.ask("file", "a").done()


def test_an_error_of_the_cache_is_raised(tmp_path: Path) -> None:
    """It does not leave the kernel in compilation for ever."""
    folder = tmp_path / "no folder"
    folder.write_bytes(b"")
    asked = Asked(1)
    target = Target(asked.nvrtc, 0, KernelStore(str(folder)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = [asked.ask("file", name, target=target) for name in "ab"]
        asked.programs()
        assert [type(x.exception(SECONDS)) for x in done] == [RuntimeWarning] * 2


def test_default_threads() -> None:
    assert 1 <= compiler.default_threads() <= compiler.MAX_THREADS
    with bound("emulator"):
        assert compiler.default_threads() == 0


# ---- whole models, on the emulated card


@pytest.fixture
def card() -> Iterator[None]:
    """Bind the emulator as the card, without compiled kernels."""
    for cache in (kernels.of_file, elementwise._kernel, elementwise._planned):
        cache.cache_clear()
    with bound("emulator"):
        yield


def chain(length: int, shape: tuple[int, ...] = (2, 16)) -> Net:
    """Return a model of layers with kernels of their own: softmaxes over different axes, sorts, sums."""
    net = Net("chain")
    x = net.parameter("f32", shape, "x")
    for number in range(length):
        x = net.layer("Softmax", "opset8", [x], {"axis": number % 2}, name=f"softmax{number}")
        x = net.layer(
            "CumSum",
            "opset3",
            [x, net.const(np.array(1 - number % 2))],
            {"exclusive": False, "reverse": False},
            name=f"sum{number}",
        )
        x = net.layer(("Exp", "Abs", "Sin")[number % 3], "opset1", [x], name=f"unary{number}")
    net.result(x)
    return net


def compiled(net: Net, threads: int = 2) -> ov.CompiledModel:
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), "NVIDIA", {"COMPILATION_NUM_THREADS": threads})


def used(model: ov.CompiledModel) -> list[kernels.Kernel]:
    """Return the kernels that a model has asked for."""
    backend: Any = model._compilation.backend
    return list(backend.kernels.used)


class Watched:
    """The emulator's compiler, which counts its programs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self._compile = cupy_emu.cuda.compiler.compile_using_nvrtc
        self.before: Callable[[str], object] = lambda source: None
        monkeypatch.setattr(cupy_emu.cuda.compiler, "compile_using_nvrtc", self)

    def __call__(self, source: str, *arguments: Any, **options: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        self.before(source)
        return self._compile(source, *arguments, **options)


@pytest.mark.emulator
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_models(threads: int, dynamic: bool, card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with static shapes is ready when it is compiled; others compile kernels in their first inference."""
    watched = Watched(monkeypatch)
    net = chain(6, (-1, 16) if dynamic else (2, 16))
    model = compiled(net, threads)
    before = len(watched.threads)
    assert bool(before) != dynamic
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    core = ov.Core()
    expected = core.compile_model(core.read_model(*net.build()), "CPU")([x])[0]
    for _ in range(3):
        np.testing.assert_allclose(model([x])[0], expected, rtol=1e-5)
    assert bool(len(watched.threads) - before) == dynamic and set(watched.threads) == {"ovgpu compiler"}


@pytest.mark.emulator
def test_all_steps_are_bound_before_the_first_kernel_is_compiled(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, asked, waited = Watched(monkeypatch), list[str](), list[bool]()
    prepare = kernels.Kernel.prepare

    def recorded(kernel: kernels.Kernel, shared: int = 0) -> None:
        prepare(kernel, shared)
        asked.append(kernel.name)
        if len(asked) == 18:
            bound_all.set()

    bound_all = threading.Event()
    watched.before = lambda source: waited.append(bound_all.wait(SECONDS))
    monkeypatch.setattr(kernels.Kernel, "prepare", recorded)
    model = compiled(chain(6, (-1, 16)))
    model([np.ones((2, 16), np.float32)])
    assert waited and all(waited) and len(asked) == 18


@pytest.mark.emulator
@pytest.mark.parametrize("length", [2, 6], ids=["bound before it runs", "run while it is bound"])
def test_errors_name_the_layer(length: int, card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)

    def reject(source: str) -> None:
        if "cumsum" in source:
            raise cupy_emu.cuda.compiler.CompileException("kernel.cu(1): error: no")

    watched.before = reject
    model, x = compiled(chain(length)), np.ones((2, 16), np.float32)
    request = model.create_infer_request()
    for _ in range(2):
        with pytest.raises(ov.OpError, match=r"^\[CumSum\] cuda_kernels/cumsum.cu, .* compile:\n.*layer 'sum0'"):
            request.infer([x])
    watched.before = lambda source: None
    assert np.isfinite(request.infer([x])[0]).all()


@pytest.mark.emulator
def test_requests_in_several_threads(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the kernels that one of them has asked for first."""
    watched = Watched(monkeypatch)
    model, x = compiled(chain(4, (-1, 16))), np.ones((2, 16), np.float32)
    queue = ov.AsyncInferQueue(model, 4)
    found: list[np.ndarray] = []
    queue.set_callback(lambda request, _: found.append(request.get_output_tensor(0).data.copy()))
    for _ in range(12):
        queue.start_async([x])
    queue.wait_all()
    assert len(found) == 12 and all(np.array_equal(y, found[0]) for y in found)
    assert len(watched.threads) <= len(used(model))


@pytest.mark.emulator
@pytest.mark.parametrize("compilers", [0, 2])
def test_threads_that_ask_for_a_kernel_at_once(compilers: int, card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled once, and then allows launches with the shared memory that each of them wants."""
    source = (
        '#include "common.cuh"\nextern "C" __global__ void kernel(float* out) '
        "{ OVGPU_DYN_SHARED(float, x); *out = *x; }"
    )
    watched, store = Watched(monkeypatch), KernelStore(threads=compilers)

    def ask(kernel: kernels.Kernel, shared: int, at_once: threading.Barrier, allowed: list[bool]) -> None:
        kernel_cache.enter(store)
        at_once.wait(SECONDS)
        kernel.prepare(shared)
        allowed.append(kernel.function().max_shared >= shared)

    for turn in range(20):
        kernel = kernels.Kernel("kernel", source, "kernel", exported=True)
        at_once, allowed = threading.Barrier(6), list[bool]()
        asking = [threading.Thread(target=ask, args=(kernel, (50 + 10 * n) << 10, at_once, allowed)) for n in range(6)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(SECONDS)
        assert allowed == [True] * 6 and len(watched.threads) == turn + 1


@pytest.mark.emulator
def test_kernels_are_compiled_before_constants_are_uploaded(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from ovgpu.backends.cuda import transfer

    watched, upload = Watched(monkeypatch), transfer.upload
    order: list[str] = []
    started = threading.Event()

    def compiling(source: str) -> None:
        order.append("compiles")
        started.set()

    def uploading(*arguments: Any) -> None:
        started.wait(SECONDS)
        order.append("uploads")
        upload(*arguments)

    watched.before = compiling
    monkeypatch.setattr(transfer, "upload", uploading)
    net = Net("constant")
    net.result(
        net.layer(
            "MatMul",
            "opset1",
            [net.layer("Exp", "opset1", [net.parameter("f32", (2, 16))]), net.const(np.eye(16, 8, dtype=np.float32))],
            {"transpose_a": False, "transpose_b": False},
        )
    )
    model = compiled(net)
    assert order[0] == "compiles" and "uploads" in order
    np.testing.assert_allclose(model([np.zeros((2, 16), np.float32)])[0], np.ones((2, 8)))


@pytest.mark.emulator
def test_constants_that_could_not_be_uploaded_are_forgotten(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from ovgpu.backends.cuda import transfer

    net = Net("ranks")
    x = net.parameter("f32", None)
    net.result(net.layer("Add", "opset1", [x, net.const(np.full((64,), 3, np.float32))]))
    model = compiled(net, 0)
    with monkeypatch.context() as patched:
        patched.setattr(transfer, "upload", lambda *_: (_ for _ in ()).throw(ov.DeviceError("the copy failed")))
        with pytest.raises(ov.DeviceError, match="the copy failed"):
            model([np.zeros((2, 64), np.float32)])
    np.testing.assert_array_equal(model([np.zeros((2, 64), np.float32)])[0], np.full((2, 64), 3))


# ---- NVRTC


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_programs_of_several_kernels_compile() -> None:
    """Generated kernels, and instances of a file: one cubin has them all."""
    with bound("emulator"):
        codes = [kernel.code for kernel in used(compiled(chain(6), 0))]
    with nvrtc.targeting("sm_90") as cupy:
        for group in ([c for c in codes if c.exported], [c for c in codes if "softmax_" in c.name]):
            assert len(group) >= 2 and all(code.joins(group[:n]) for n, code in enumerate(group))
            found = compiler.program(cupy, group)
            assert len({binary.code for binary in found}) == 1
            assert all(binary.symbol.encode() + b"\0" in binary.code for binary in found)
