"""Compilation of kernels by NVRTC, on threads.

Requested kernels wait in one queue for the threads that compile. A thread takes the kernel with the longest source,
which takes longest, and with it others that fit into the same program: instances of the same file, or generated
kernels. A program takes some 40 ms even if it is small. One program for several kernels therefore takes less processor
time, but several programs are done sooner if there are threads for them. So a thread takes all kernels that fit if no
other thread is idle, and otherwise its share.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ovgpu.backends.cuda import kernel_cache, rt, sources
from ovgpu.backends.cuda.kernel_cache import Binary, KernelStore
from ovgpu.ops.base.tasks import cores

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_THREADS = 8
MAX_KERNELS = 8  # of one program: the cache keeps the whole program for each of them


@dataclass(frozen=True)
class Code:
    """A kernel's source, its name, and the compiler's flags. An ``exported`` kernel is an ``extern "C"`` function, and
    its source defines nothing else and includes only headers; other kernels are instances of templates."""

    source: str
    name: str
    flags: tuple[str, ...]
    exported: bool

    def joins(self, others: Sequence[Code]) -> bool:
        """Return whether one program can define this kernel and the others."""
        same = all((self.flags, self.exported) == (other.flags, other.exported) for other in others)
        return same and (
            all(self.name != other.name for other in others)
            if self.exported
            else all(self.source == other.source for other in others)
        )


@dataclass(frozen=True)
class Target:
    """The device of a CuPy module that a kernel is compiled for, and the store that caches it."""

    cupy: Any
    device: int
    store: KernelStore


@dataclass(frozen=True, eq=False)
class Job:
    """A kernel that waits for a thread, or is compiled by one."""

    code: Code
    key: str  # of the cache
    target: Target
    done: Future[Binary]


class Queue:
    """Jobs that wait, and threads that take them. A thread ends when there is no job left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Job] = []
        self._running: dict[tuple[str, int, int], Job] = {}
        self._threads = 0

    def submit(self, code: Code, key: str, target: Target, threads: int) -> Future[Binary]:
        """Compile a kernel and cache it: on one of at most ``threads`` threads, or in this thread if that is 0."""
        from concurrent.futures import Future  # here, since it loads logging

        job = Job(code, key, target, Future())
        if not threads:
            compile_jobs([job])
            return job.done
        identity = key, id(target.store), target.device
        with self._lock:
            if identity in self._running:
                return self._running[identity].done
            self._running[identity] = job
            job.done.add_done_callback(lambda _: self._running.pop(identity))
            self._waiting.append(job)
            if self._threads >= threads:
                return job.done
            self._threads += 1
        try:
            threading.Thread(target=self._work, args=(threads,), name="ovgpu compiler").start()
        except RuntimeError:  # no more threads, as when the interpreter exits
            self._work(threads)
        return job.done

    def _work(self, threads: int) -> None:
        while jobs := self._take(threads):
            compile_jobs(jobs)

    def _take(self, threads: int) -> list[Job]:
        """Remove jobs for one program from the queue. If the queue is empty, count one thread less: the caller ends."""
        with self._lock:
            if not self._waiting:
                self._threads -= 1
                return []
            first = max(self._waiting, key=lambda job: len(job.code.source))
            jobs = [first]
            for job in self._waiting:
                if job is not first and job.target == first.target and job.code.joins([x.code for x in jobs]):
                    jobs.append(job)
            idle = max(threads - self._threads, 0)
            del jobs[min(-(-len(jobs) // (idle + 1)), MAX_KERNELS) :]
            self._waiting = [job for job in self._waiting if job not in jobs]
            return jobs


queue = Queue()


def default_threads() -> int:
    """Return the number of threads that compile; 0 if the thread that requests a kernel compiles it."""
    return 0 if rt.replaced() else min(cores(), MAX_THREADS)


def compile_jobs(jobs: Sequence[Job]) -> None:
    """Compile kernels as one program, cache them, and set the jobs' results or errors."""
    target = jobs[0].target
    try:
        with target.cupy.cuda.Device(target.device):
            binaries = program(target.cupy, [job.code for job in jobs])
        for job, binary in zip(jobs, binaries):
            kernel_cache.save(job.key, binary, target.store)
            job.done.set_result(binary)
    except BaseException as e:
        left = [job for job in jobs if not job.done.done()]
        if len(left) == 1:
            left[0].done.set_exception(e)
        else:  # compile them one by one, so that only those that are wrong fail
            for job in left:
                compile_jobs([job])


def program(cupy: Any, codes: Sequence[Code]) -> list[Binary]:
    """Compile kernels that `join` as one program for the current device. Each result has the code of the whole program.

    Raises CuPy's CompileException with NVRTC's log if a source is wrong.
    """
    first = codes[0]
    source = "\n".join(code.source for code in codes) if first.exported else first.source
    names = () if first.exported else [code.name for code in codes]
    code, symbols = compile(cupy, source, first.flags, names)
    return [Binary(symbols.get(kernel.name, kernel.name), code) for kernel in codes]


def compile(
    cupy: Any, source: str, flags: Sequence[str], names: Sequence[str], log: Any = None
) -> tuple[bytes, dict[str, str]]:
    """Return machine code for the current device, and the mangled name of each name expression in it.

    Raises CuPy's CompileException with NVRTC's log if the source is wrong; otherwise the log is written to ``log``.

    CuPy finds CUDA's headers. Its `RawModule` is not used, since it flushes denormal numbers to zero; OpenVINO does
    not.
    """
    options = cupy._core.core.assemble_cupy_compiler_options((*flags, f"-I{sources.folder()}"))
    code, symbols = cupy.cuda.compiler.compile_using_nvrtc(
        source, options, None, "kernel.cu", tuple(names), log, cache_in_memory=True
    )
    return code, symbols or {}
