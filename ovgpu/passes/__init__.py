"""Rewrites of a Model before it becomes a program; one file each."""

from __future__ import annotations

from ovgpu.model import Model
from ovgpu.passes.batch_norm import scale_channels
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.passes.compressed import compressed_weights
from ovgpu.passes.einsum import expand_einsum
from ovgpu.passes.finish_convolution import finish_convolutions
from ovgpu.passes.fold import fold_constants
from ovgpu.passes.fuse_elementwise import fuse_elementwise
from ovgpu.passes.fuse_reshape import reshape_early
from ovgpu.passes.grouped_attention import group_heads
from ovgpu.passes.growth import growing_variables
from ovgpu.passes.norm import scale_norms
from ovgpu.passes.rank_states import rank_states
from ovgpu.passes.recurrent import recurrent_layers


def prepare(model: Model, fuse: bool = False, finish: bool = False) -> Model:
    """A rewritten copy of the model, ready to be built; with ``fuse``, for a backend that runs elementwise chains as
    one step, with ``finish`` for one that runs them along with convolutions, from cache."""
    model = model.clone()
    rank_states(model)
    canonicalise(model)
    recurrent_layers(model)
    compressed_weights(model, device=fuse)
    expand_einsum(model)
    fold_constants(model)
    growing_variables(model)
    group_heads(model)
    scale_norms(model)
    scale_channels(model)
    if finish:
        finish_convolutions(model)
    if fuse:
        reshape_early(model)
        fuse_elementwise(model)
    return model
