"""Models compressed by nncf: activations and weights quantized to 8 bits, or weights compressed to 8 or 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openvino as ov

from ._convert import Built


def quantized(build: Callable[[], Built], transformer: bool = False) -> Built:
    """Add FakeQuantize to weights and activations, whose ranges come from the model's own calls."""
    built = build()

    def make() -> ov.Model:
        import nncf

        inputs = [call.inputs for call in built.calls(np.random.RandomState(81))]
        kind = nncf.ModelType.TRANSFORMER if transformer else None
        return nncf.quantize(built.model, nncf.Dataset(inputs), model_type=kind)

    return Built(make, built.calls)


def weights(build: Callable[[], Built], mode: str, group: int = -1, all_layers: bool = True) -> Built:
    """Compress the weights by `mode` of nncf.CompressWeightsMode, with scales per group of rows.

    Without `all_layers`, embeddings and the last layer have 8 bits in any mode, which is nncf's default.
    """
    options = {"all_layers": all_layers, "ratio": 1.0} if mode not in ("INT8_SYM", "INT8_ASYM") else {}
    if group > 0:
        options["group_size"] = group
    built = build()

    def make() -> ov.Model:
        import nncf

        return nncf.compress_weights(built.model, mode=nncf.CompressWeightsMode[mode], **options)

    return replace(built, make=make, module=None)
