"""Properties of devices against those of openvino's CPU plugin: names, types, and the texts they accept."""

from __future__ import annotations

from typing import Any

import openvino
import pytest

import ovgpu
from ovgpu.compile.settings import CARD_READ_ONLY, COMPILED_ONLY, READ_ONLY
from ovgpu.properties.table import OF_SELECTORS, REFUSED, WRITABLE

from . import property_table
from .test_properties import KEYS, both

TEXTS = (
    *("YES", "NO", "TRUE", "false", "yes", "0", "1", "-1", "2", "5", "1000000000000", "abc", "None", "GPU.0"),
    *("f32", "f16", "bf16", "i8", "u8", "f64", "dynamic", "AUTO", "NUMA", "STATIC"),
    *("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT", "ACCURACY", "PERFORMANCE", "LOW", "MEDIUM", "HIGH", "DEFAULT"),
    *("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY", "TENSOR_PARALLEL", "PIPELINE_PARALLEL"),
    *("LOG_NONE", "LOG_ERROR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG", "LOG_TRACE", "NO", "ERR", "WARNING"),
)
THEIRS = [name for name, kind in openvino.Core().get_property("CPU", "SUPPORTED_PROPERTIES").items() if kind == "RW"]
CACHES = ("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION")
# openvino derives the numbers of streams and threads, and the fast types, from the processor; ovgpu reports the type
# in which it stores keys and values.
DERIVED = {
    "NUM_STREAMS": {"0", "-1", "AUTO"},
    "INFERENCE_NUM_THREADS": {"0"},
    "INFERENCE_PRECISION_HINT": {"f16", "bf16"},
    **{key: {"f16", "bf16", "u8", "i8"} for key in CACHES},
}
LENIENT = {  # texts that ovgpu accepts, too
    "LOG_LEVEL": {"NO", "ERR", "WARNING"},  # names of the enumerators
    **{key: {"i8", "f64", "dynamic"} for key in CACHES},  # as in models for other devices; the compiled model warns
    **{key: {"1000000000000"} for key in ("NUM_STREAMS", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT_NUM_REQUESTS")},
}


def plain(value: Any) -> tuple[str, str]:
    name = value.get_type_name() if hasattr(value, "get_type_name") else getattr(value, "name", value)
    return type(value).__name__, str(name)


def answer(library: Any, name: str, text: str) -> Any:
    """Return a property after it was set to a text, as its type and name; None if the text is refused.

    openvino reads some texts only when its plugin is loaded.
    """
    core = library.Core()
    try:
        core.set_property("CPU", {name: text})
        return plain(core.get_property("CPU", name))
    except RuntimeError:
        return None


@pytest.mark.parametrize("name", THEIRS)
def test_texts(name: str) -> None:
    for text in TEXTS:
        wanted, found = answer(openvino, name, text), answer(ovgpu, name, text)
        if wanted is not None and text in DERIVED.get(name, ()):
            assert found is not None, text
        elif wanted is not None or text not in LENIENT.get(name, ()):
            assert found == wanted, text


@pytest.mark.parametrize("name", THEIRS)
def test_types(name: str) -> None:
    ours, theirs = (library.Core().get_property("CPU", name) for library in (ovgpu, openvino))
    assert type(ours).__name__ == type(theirs).__name__


def test_every_property_of_openvino_has_a_row() -> None:
    listed = {*WRITABLE, *READ_ONLY, *CARD_READ_ONLY, *COMPILED_ONLY, *REFUSED, *OF_SELECTORS["AUTO"]}
    names = {str(both(*key)[0]) for key in KEYS}
    for device in ("CPU", "AUTO", "MULTI"):
        names |= set(openvino.Core().get_property(device, "SUPPORTED_PROPERTIES"))
    assert {name for name in names - listed if not name.startswith("NPU_")} == set()
    assert set(property_table.READ) == {*READ_ONLY, *CARD_READ_ONLY, *COMPILED_ONLY}


@pytest.mark.parametrize("name", [name for name in REFUSED if "*" not in name])
def test_refused(name: str) -> None:
    core = ovgpu.Core()
    for call in (lambda: core.get_property("CPU", name), lambda: core.set_property("CPU", {name: 1})):
        with pytest.raises(RuntimeError, match=f"Unsupported property {name} by CPU plugin"):
            call()


@pytest.mark.parametrize("name", WRITABLE)
def test_accepted(name: str) -> None:
    """The default is accepted, by the device and for one model, and either an effect or a reason is told."""
    core, row = ovgpu.Core(), WRITABLE[name]
    assert bool(row.effect) != bool(row.ignored)
    core.set_property("CPU", {name: row.default})
    assert type(core.get_property("CPU", name)) is type(row.default)


def test_the_page_is_current() -> None:
    assert property_table.PAGE.read_text(encoding="utf-8") == property_table.page(), (
        "python -m tests.api.property_table"
    )
