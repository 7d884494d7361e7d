"""Graph rewrites of a Model before it is lowered to a program, one file each. `prepare` runs them in order."""

from __future__ import annotations

from ovgpu.model import Model
from ovgpu.passes._graph import HALVES
from ovgpu.passes.activation import fuse_activations
from ovgpu.passes.add_norm import add_norms
from ovgpu.passes.attention import fuse_attention
from ovgpu.passes.batch_norm import scale_channels
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.passes.compressed import compressed_weights
from ovgpu.passes.convolution_epilogue import fuse_convolution_epilogues
from ovgpu.passes.decomposed_norm import join_norms
from ovgpu.passes.einsum import expand_einsum
from ovgpu.passes.fold import fold_constants
from ovgpu.passes.fuse_elementwise import fuse_elementwise
from ovgpu.passes.fuse_reshape import reshape_early
from ovgpu.passes.group_norm import group_norms
from ovgpu.passes.group_norm_epilogue import fuse_group_norm_epilogues
from ovgpu.passes.grouped_attention import group_heads
from ovgpu.passes.infer_state_rank import infer_state_rank
from ovgpu.passes.kv_cache import growing_variables
from ovgpu.passes.matmul_epilogue import fuse_matmul_epilogues
from ovgpu.passes.merge_masks import merge_masks
from ovgpu.passes.merge_products import merge_products
from ovgpu.passes.norm_affine import scale_norms
from ovgpu.passes.precision import downcast
from ovgpu.passes.recurrent import recurrent_layers
from ovgpu.passes.rotary import rotary_embeddings
from ovgpu.passes.upcast_to_f32 import upcast_to_f32
from ovgpu.passes.weight_layout import lay_out_weights
from ovgpu.types import Type


def prepare(model: Model, fuse: bool = False, epilogues: bool = False, precision: Type = Type.dynamic,
            cache: Type = Type.dynamic) -> Model:
    """Return a rewritten copy of the model, ready to be lowered: `simplify`, then `fuse_layers`.

    ``fuse`` is for a device that runs chains of elementwise layers in one kernel, or in that of a convolution;
    ``epilogues`` is for the host, which applies such chains to results of convolutions in cache. ``precision``: the
    type that the model computes in, and ``cache``: that of its KV cache; `Type.dynamic` leaves them as they are.
    """
    model = simplify(model, fuse, precision, cache)
    fuse_layers(model, fuse, epilogues)
    return model


def simplify(model: Model, fuse: bool = False, precision: Type = Type.dynamic, cache: Type = Type.dynamic) -> Model:
    """Return a copy of the model that has few kinds of layers and its final constants: the first part of `prepare`."""
    model = model.clone()
    half, cache_half = (kind if kind in HALVES else None for kind in (precision, cache))
    infer_state_rank(model)
    if precision == Type.f32:
        upcast_to_f32(model)
    canonicalise(model)
    recurrent_layers(model)
    # NumPy takes six times as long to convert weights of 16 bits as to multiply by them; cuBLAS reads them as they are.
    compressed_weights(model, device=fuse, halves=fuse and half is None)
    expand_einsum(model)
    fold_constants(model, halves=half is None)
    rotary_embeddings(model)
    fuse_activations(model)
    fuse_attention(model)
    growing_variables(model)
    group_heads(model)
    join_norms(model)
    group_norms(model)
    scale_norms(model)
    scale_channels(model)
    merge_masks(model)
    downcast(model, half, cache_half)
    if fuse:
        merge_products(model)
    return model


def fuse_layers(model: Model, fuse: bool = False, epilogues: bool = False) -> None:
    """Fuse layers that follow each other, in place: the last part of `prepare`."""
    if epilogues or fuse:
        fuse_convolution_epilogues(model, device=fuse)
    if epilogues:
        lay_out_weights(model)
    if fuse:
        fuse_group_norm_epilogues(model)
        reshape_early(model)
        fuse_elementwise(model)
        fuse_matmul_epilogues(model)
        add_norms(model)
