"""The table of properties in ovgpu/properties/README.md.

python -m tests.api.property_table   # writes it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ovgpu.compile.settings import CARD_READ_ONLY, COMPILED_ONLY, READ_ONLY
from ovgpu.properties.table import OF_SELECTORS, REFUSED, WRITABLE, Writable

PAGE = Path(__file__).parents[2] / "ovgpu" / "properties" / "README.md"
BEGIN, END = "<!-- begin: written by `python -m tests.api.property_table` -->", "<!-- end -->"
READ = {
    "AVAILABLE_DEVICES": "the numbers of the devices of this name",
    "DEVICE_ARCHITECTURE": "the machine's, or the card's, such as sm_90",
    "DEVICE_TYPE": "integrated or discrete",
    "DEVICE_UUID": "the card's, as in nvidia-smi",
    "EXECUTION_DEVICES": "the devices that run a compiled model",
    "FULL_DEVICE_NAME": 'the name of the processor, or of the card with "(dGPU)"',
    "GPU_DEVICE_TOTAL_MEM_SIZE": "bytes of the card",
    "GPU_EXECUTION_UNITS_COUNT": "multiprocessors of the card",
    "GPU_MEMORY_STATISTICS": "bytes in use, by kind of memory",
    "GPU_UARCH_VERSION": "the card's compute capability",
    "LOADED_FROM_CACHE": "whether a compiled model came from CACHE_DIR",
    "NETWORK_NAME": "the model's name",
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": "the number of requests of a queue",
    "OPTIMIZATION_CAPABILITIES": "types that are fast, and EXPORT_IMPORT",
    "RANGE_FOR_ASYNC_INFER_REQUESTS": "smallest and largest useful number of requests, and a step",
    "RANGE_FOR_STREAMS": "smallest and largest useful number of streams",
    "SUPPORTED_PROPERTIES": "all names, with RO or RW",
}


def markdown() -> str:
    """Return the three tables: properties with an effect, those without, and those that are refused."""
    parts = [
        "With an effect:\n",
        *_rows("| property | default | effect |\n| --- | --- | --- |", _writable(lambda row: row.effect)),
        "\nRead-only:\n",
        *_rows("| property | devices | value |\n| --- | --- | --- |", _read_only()),
        "\nAccepted, checked and returned, without an effect:\n",
        *_rows("| property | default | why |\n| --- | --- | --- |", _writable(lambda row: row.ignored)),
        "\nRefused, with an error:\n",
        *_rows("| property | why |\n| --- | --- |", ((f"`{name}`", why) for name, why in REFUSED.items())),
    ]
    return "\n".join(parts)


def _rows(head: str, rows: Iterator[tuple[str, ...]]) -> list[str]:
    return [head, *(f"| {' | '.join(row)} |" for row in rows)]


def _writable(told: Any) -> Iterator[tuple[str, ...]]:
    for name, row in WRITABLE.items():
        if told(row):
            yield f"`{name}`", _default(row), told(row)
    for kind, rows in OF_SELECTORS.items():
        for name, row in rows.items():
            if told(row):
                yield f"`{name}` of {kind}", _default(row), told(row)


def _default(row: Writable) -> str:
    value = row.default
    if hasattr(value, "get_type_name"):
        return str(value.get_type_name())
    return str(getattr(value, "name", value)) or "empty"


def _read_only() -> Iterator[tuple[str, ...]]:
    tables: Mapping[str, Mapping[str, Any]] = {"all": READ_ONLY, "NVIDIA": CARD_READ_ONLY, "compiled": COMPILED_ONLY}
    for name, value in READ.items():
        yield f"`{name}`", next(kind for kind, names in tables.items() if name in names), value


def page() -> str:
    """Return the page with the tables of today."""
    text = PAGE.read_text(encoding="utf-8")
    return text[: text.index(BEGIN)] + f"{BEGIN}\n{markdown()}\n{END}" + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
