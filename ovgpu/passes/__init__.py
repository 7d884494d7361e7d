"""Rewrites of a Model before it becomes a program; one file each."""

from __future__ import annotations

from ovgpu.model import Model
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.passes.fold import fold_constants
from ovgpu.passes.recurrent import recurrent_layers


def prepare(model: Model) -> Model:
    """A rewritten copy of the model, ready to be built."""
    model = model.clone()
    canonicalise(model)
    recurrent_layers(model)
    fold_constants(model)
    return model
