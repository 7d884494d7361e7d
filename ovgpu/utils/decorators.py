"""Decorators of ``openvino.utils.decorators``: `custom_preprocess_function` is ovgpu's, others are openvino's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ovgpu.interop.names import names_of

__getattr__ = names_of(__name__)


def custom_preprocess_function(custom_function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that returns a node return the node's output, as `PreProcessSteps.custom` takes it."""

    @wraps(custom_function)
    def wrapper(node: Any) -> Any:
        return custom_function(node).output(0)

    return wrapper
