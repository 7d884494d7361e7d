"""Class MultiCompiledModel: a model compiled for several devices, which share its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any
from weakref import WeakSet

from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.infer_request import InferRequest
from ovgpu.compile.compilation import Compilation

# Functions that combine the devices' values of a property. Others have the value of the first device.
COMBINED: dict[str, Callable[[list[Any]], Any]] = {
    "EXECUTION_DEVICES": lambda values: list(chain.from_iterable(values)),
    "FULL_DEVICE_NAME": ", ".join,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": sum,
    "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda values: (1, sum(most for _, most, _ in values), 1),
}


class MultiCompiledModel(CompiledModel):
    """Model compiled for the devices of ``MULTI:A,B``, which share its requests.

    A request, and its state, belongs to one device for its life. A new request goes to the device that has the fewest
    requests alive, in proportion to its OPTIMAL_NUMBER_OF_INFER_REQUESTS, which ``MULTI:A(4),B(2)`` sets; among equal
    devices, to the first one. The private request, plans and the runtime model are those of the first device.
    """

    def __init__(self, compilations: Sequence[Compilation]) -> None:
        super().__init__(compilations[0])
        self._compilations = tuple(compilations)
        self._requests = [WeakSet[InferRequest]() for _ in compilations]

    def create_infer_request(self) -> InferRequest:
        """Create a request on one of the devices, with its own inputs, outputs, state and memory."""
        with self._lock:
            compilation, requests = min(zip(self._compilations, self._requests), key=_load)
            request = InferRequest(compilation.current)
            requests.add(request)
            return request

    def get_property(self, property: str) -> Any:
        """Return a property's value: for all devices, if it counts or names them, else the first device's.

        Raises: RuntimeError if there is no such property.
        """
        values = [compilation.current.settings.get(property) for compilation in self._compilations]
        return COMBINED[property](values) if property in COMBINED else values[0]

    @property
    def _device(self) -> str:
        return "MULTI:" + ",".join(
            f"{settings.device}({settings.requests})" if settings.requests else settings.device
            for settings in (compilation.settings for compilation in self._compilations)
        )


def _load(shared: tuple[Compilation, WeakSet[InferRequest]]) -> float:
    """Return the number of a device's requests that are alive, divided by its optimal number."""
    compilation, requests = shared
    optimal: int = compilation.settings.get("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    return len(requests) / optimal
