"""Faults put into group norms of images whose channels are adjacent: wrong results or the device's checks reveal
each."""

from __future__ import annotations

from typing import Any

import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.normalization.group_normalization import GroupNormalization
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_pixel_normalization import F16, force, normalize

FILE = "pixel_normalization.cu"


def normalized(split: str, *arguments: Any, groups: int, **named: Any) -> None:
    """Normalise with a choice of blocks; see `force` and `normalize`."""
    backend = CudaBackend()
    with pytest.MonkeyPatch.context() as patch:
        force(patch, split)
        normalize(backend, GroupNormalization(num_groups=groups, epsilon=1e-3), *arguments, **named)


def alone() -> None:
    """One block has an image; its threads have different numbers of pixels."""
    normalized("NONE", (2, 40, 20, 21), F16, groups=4, channels=(8, 16), epilogue=True)


def few() -> None:
    """Some threads have one pixel, and others two."""
    normalized("NONE", (1, 40, 7, 9), F16, groups=4)


def clustered() -> None:
    normalized("CLUSTER", (2, 40, 20, 21), F16, groups=4, offset=2)


def in_parts() -> None:
    normalized("MOMENTS", (2, 40, 20, 21), F16, groups=4, offset=2)


def shifted() -> None:
    normalized("NONE", (1, 8, 30, 40), groups=2, offset=300)


FAULTS = [
    Fault(name, run, FILE, sound, broken)
    for name, run, sound, broken in [
        ("deviations from zero", shifted, "if (pixel == first) base[j] = A(part[j]);", ""),
        ("threads with one pixel less", few, "A(whole + (from < rest))", "A(whole)"),
        ("deviations of means left out", alone, "deviations + n * (part - mean) * (part - mean)", "deviations"),
        ("no barrier before moments are read", alone, "of_channels[0]);\n    __syncthreads();", "of_channels[0]);"),
        ("no barrier before factors are read", alone, "eps_inside);\n  }\n  __syncthreads();", "eps_inside);\n  }"),
        ("groups do not change within a chunk", alone, "if (--left == 0) {", "if (false) {"),
        ("pixels as close as in x", alone, "pixel * s.out_step", "pixel * s.x_step"),
        ("an operand's pixels as close as channels", alone, "pixel * operands.step[n]", "pixel * 40"),
        ("channels of the first image", alone, "(unsigned long long)blockIdx.y * s.channels + channel", "channel"),
        ("last part as long as the others", clustered, "A(s.pixels_of(from) * s.group)", "A(s.length * s.group)"),
        ("no arrival at the cluster", clustered, "arrive_at_cluster<UNTOUCHED>();", ""),
        ("stores before the others expect them", clustered, "wait_for_cluster();  // all blocks expect stores", ""),
        ("nobody waits for stores", clustered, "    stores->wait();\n", ""),
        (
            "stores that nobody expects",
            clustered,
            "groups * s.parts * sizeof(uint4)",
            "groups * (s.parts - 1) * sizeof(uint4)",
        ),
        ("parts of the first image", in_parts, "((unsigned long long)blockIdx.y * (s.channels / s.group)", "((0)"),
        ("moments of the first part", in_parts, "partial[part * 2]", "partial[0]"),
    ]
]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
