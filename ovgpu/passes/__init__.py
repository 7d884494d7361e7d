"""Rewrites of a Model before it becomes a program; one file each."""

from __future__ import annotations

from ovgpu.model import Model
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.passes.fold import fold_constants


def prepare(model: Model) -> Model:
    """A rewritten copy of the model, ready to be built."""
    model = model.clone()
    canonicalise(model)
    fold_constants(model)
    return model
