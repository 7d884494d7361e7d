"""Class AdaptedDecoders: a decoder with different LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovgpu.genai.adapters import Adapter, AdapterConfig, add_adapters
from ovgpu.genai.decoder import Decoder
from ovgpu.model import Model

MOST_SETS = 4  # of adapters whose compiled models are kept, beside those of the pipeline
Pairs = tuple[tuple[Adapter, float], ...]


class AdaptedDecoders:
    """Decoder with the adapters that generations ask for. All have the same weights.

    ``own`` is the one with ``adapters``. Raises: Error if these do not fit the model.
    """

    def __init__(
        self, model: Model, device: str, properties: Mapping[str, Any], adapters: AdapterConfig | None
    ) -> None:
        self._model, self._device, self._properties = model, device, properties
        self._pairs = _pairs(adapters)
        self.own = self._compiled(self._pairs, None)
        self._others: dict[Pairs, Decoder] = {}  # those used last at the end

    def of(self, adapters: AdapterConfig | None) -> Decoder:
        """Return the decoder with some adapters, or else ``own``. Raises: Error if they do not fit the model."""
        pairs = _pairs(adapters)
        if adapters is None or pairs == self._pairs:
            return self.own
        found = self._others.pop(pairs, None) or self._compiled(pairs, self.own)
        if len(self._others) == MOST_SETS:
            del self._others[next(iter(self._others))]
        self._others[pairs] = found
        return found

    def _compiled(self, pairs: Pairs, donor: Decoder | None) -> Decoder:
        model = self._model
        if pairs:
            model = model.clone()
            add_adapters(model, pairs)
        return Decoder(model, self._device, self._properties, donor)


def _pairs(adapters: AdapterConfig | None) -> Pairs:
    return () if adapters is None else tuple(adapters.get_adapters_and_alphas())
