"""Properties, found by reflection and compared with openvino's."""

from __future__ import annotations

from operator import attrgetter
from types import BuiltinFunctionType, ModuleType
from typing import Any

import openvino
import openvino._pyopenvino.properties as native
import openvino.properties.intel_gpu.hint
import openvino.properties.intel_npu
import pytest

import ovgpu.properties
from ovgpu.types import Type

from .both import agree, check, members, table

MODULES = (
    "",
    "hint",
    "device",
    "streams",
    "log",
    "intel_auto",
    "intel_cpu",
    "intel_gpu",
    "intel_gpu.hint",
    "intel_npu",
)
LEFT_OUT = {
    "cache_encryption_callbacks",  # C++ callbacks
    "compiled_blob",  # an object handed to a plugin of openvino
    "PCIInfo", "Priorities",  # types of values that only openvino creates
}  # fmt: skip


def module(root: Any, name: str) -> Any:
    return attrgetter(name)(root) if name else root


def public(name: str, kind: Any) -> list[str]:
    found = module(native, name)
    return [key for key in dir(found) if not key.startswith("_") and kind(getattr(found, key))]


def is_enum(value: Any) -> bool:
    return hasattr(value, "__members__")


def is_property(value: Any) -> bool:
    return isinstance(value, BuiltinFunctionType)


def both(name: str, key: str) -> tuple[Any, Any]:
    """Return our object of that name, and openvino's."""
    return getattr(module(ovgpu.properties, name), key), getattr(module(openvino.properties, name), key)


KEYS = [(name, key) for name in MODULES for key in public(name, is_property) if key not in LEFT_OUT]
ENUMS = [(name, key) for name in MODULES for key in public(name, is_enum)]


@pytest.mark.parametrize("name", MODULES)
def test_has_every_public_name(name: str) -> None:
    names = set(public(name, lambda value: not isinstance(value, ModuleType))) - LEFT_OUT
    assert names <= set(dir(module(ovgpu.properties, name)))


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_keys(name: str, key: str) -> None:
    mine, theirs = both(name, key)
    assert isinstance(mine, str)
    assert (mine, mine(), hash(mine), repr(mine)) == (theirs, theirs(), hash(theirs), repr(theirs))
    assert type(mine()) is str


SAMPLES = {
    "True": True, "1": 1, "-1": -1, "2.5": 2.5, "text": "LATENCY", "None": None, "2**40": 2**40,
    "dict": {"NVIDIA": {"A": 1}}, "list": ["a"], "curve": "{A:{1:2,30:0.5},B.0:{ 2 : 1}}", "no curve": "{A:{x:1}}",
}  # fmt: skip


@pytest.mark.parametrize(("name", "key"), [pair for pair in KEYS if pair[1] != "num_streams"])
def test_values(name: str, key: str) -> None:
    mine, theirs = both(name, key)
    for label, value in SAMPLES.items():
        try:
            expected: Any = theirs(value)
            expected = expected[0], expected[1].value
        except (TypeError, RuntimeError) as e:
            expected = type(e)
        try:
            found = mine(value)
            found = found[0], found[1].value
        except (TypeError, RuntimeError) as e:
            found = type(e)
        if key == "priorities" and isinstance(expected, tuple):
            expected = expected[0], expected[1].rstrip(",")
        assert found == expected, label
        assert not isinstance(found, tuple) or type(found[1]) is type(expected[1]), label


@pytest.mark.parametrize(("name", "key"), ENUMS)
def test_enumerations(name: str, key: str) -> None:
    mine, theirs = both(name, key)
    assert list(mine.__members__) == list(theirs.__members__)
    for member, expected in theirs.__members__.items():
        found = getattr(mine, member)
        for function in (repr, str, int, hash):
            assert function(found) == function(expected)
        assert (found.name, found.value) == (expected.name, expected.value)
        assert mine(expected.value) is found


@agree(
    table("""
    properties.hint.performance_mode(properties.hint.PerformanceMode.LATENCY)[0]
    properties.hint.model_priority(properties.hint.Priority.HIGH)[0]
    properties.hint.model_priority(properties.hint.PerformanceMode.LATENCY)
    properties.hint.inference_precision(Type.f32)[0] | properties.hint.inference_precision('f32')
    properties.streams.num(properties.streams.Num.AUTO)[0] | properties.streams.Num.AUTO.to_integer()
    properties.streams.Num.NUMA.to_integer() | properties.streams.Num().to_integer()
    properties.streams.Num(3).to_integer() | properties.device.id(1)
    properties.enable_profiling(True, False)
    properties.device.priorities('a', 'b')[0] | properties.device.priorities('a', 1) | properties.nope
    properties.hint.Priority.LOW < properties.hint.Priority.HIGH
    properties.hint.Priority.LOW >= properties.hint.Priority.HIGH
    properties.hint.Priority.DEFAULT == properties.hint.Priority.MEDIUM
    properties.hint.PerformanceMode.LATENCY == 1
    properties.hint.PerformanceMode.LATENCY < 2
    properties.hint.PerformanceMode.LATENCY == properties.hint.ExecutionMode.PERFORMANCE
    properties.device.Capability.FP16 | properties.cache_mode(properties.CacheMode.OPTIMIZE_SPEED)[0]
    properties.log.level(properties.log.Level.DEBUG)[0]
    {properties.enable_profiling: 1}['PERF_COUNT'] | 'PERF_COUNT' == properties.enable_profiling
""")
)
def test_expressions(code: str) -> None:
    check(code)


def test_capabilities() -> None:
    mine, theirs = ovgpu.properties.device.Capability, openvino.properties.device.Capability
    assert members(theirs) == members(mine) != set()
    for name in members(theirs):
        assert getattr(mine, name) == getattr(theirs, name)


def test_values_of_pairs() -> None:
    hint, streams = ovgpu.properties.hint, ovgpu.properties.streams
    mode = hint.PerformanceMode.LATENCY
    assert hint.performance_mode(mode) == ("PERFORMANCE_HINT", mode)
    assert hint.inference_precision(Type.bf16) == ("INFERENCE_PRECISION_HINT", Type.bf16)
    assert streams.num(streams.Num(3)) == ("NUM_STREAMS", 3) == ovgpu.properties.num_streams(3)
    assert ovgpu.properties.device.priorities("a", "b") == ("MULTI_DEVICE_PRIORITIES", "a,b")
    policy = hint.ModelDistributionPolicy.TENSOR_PARALLEL
    assert hint.model_distribution_policy({policy}) == ("MODEL_DISTRIBUTION_POLICY", {policy})
    with pytest.raises(TypeError, match="SUPPORTED_PROPERTIES is read-only"):
        ovgpu.properties.supported_properties(1)


def test_what_is_left_out_exists() -> None:
    everything = {key for name in MODULES for key in dir(module(native, name))}
    assert everything >= LEFT_OUT
