"""Redirection of the device CPU, for programs that name it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def cpu_is(device: str) -> Iterator[None]:
    """Compile the models of the block for ``device`` where the program names the CPU."""
    import openvino

    original = openvino.Core.compile_model

    def compile_model(self: Any, model: Any, device_name: str | None = None, config: Any = None, **kwargs: Any) -> Any:
        name = device if device_name in ("CPU", "AUTO") else device_name
        return original(self, model, name, config, **kwargs)

    with mock.patch.object(openvino.Core, "compile_model", compile_model):
        yield
