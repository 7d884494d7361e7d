"""Graph rewrites of a Model before it is lowered to a program, one file each. `PASSES` lists them in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ovgpu.model import Model, graph
from ovgpu.passes._graph import HALVES
from ovgpu.passes.append_rotated import append_rotated
from ovgpu.passes.append_to_caches import append_to_caches
from ovgpu.passes.attend_rotated import attend_rotated
from ovgpu.passes.attend_to_stored import attend_to_stored
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.passes.convert_mixed_reals import convert_mixed_reals
from ovgpu.passes.downcast import downcast
from ovgpu.passes.expand_einsum import expand_einsum
from ovgpu.passes.fold_constants import fold_constants
from ovgpu.passes.fuse_activations import fuse_activations
from ovgpu.passes.fuse_add_norms import fuse_add_norms
from ovgpu.passes.fuse_attention import fuse_attention
from ovgpu.passes.fuse_convolution_epilogues import fuse_convolution_epilogues
from ovgpu.passes.fuse_elementwise import fuse_elementwise
from ovgpu.passes.fuse_group_norm_epilogues import fuse_group_norm_epilogues
from ovgpu.passes.fuse_matmul_epilogues import fuse_matmul_epilogues
from ovgpu.passes.fuse_prologues import fuse_prologues
from ovgpu.passes.fuse_recurrent_loops import fuse_recurrent_loops
from ovgpu.passes.fuse_rotary import fuse_rotary
from ovgpu.passes.group_heads import group_heads
from ovgpu.passes.guard_maxima import guard_maxima
from ovgpu.passes.infer_state_rank import infer_state_rank
from ovgpu.passes.join_group_norms import join_group_norms
from ovgpu.passes.join_norms import join_norms
from ovgpu.passes.keep_last_logits import keep_last_logits
from ovgpu.passes.keep_products_exact import keep_products_exact
from ovgpu.passes.keep_weights_compressed import keep_weights_compressed
from ovgpu.passes.lay_out_channels_last import lay_out_channels_last
from ovgpu.passes.lay_out_panels import lay_out_panels
from ovgpu.passes.lay_out_weights import lay_out_weights
from ovgpu.passes.merge_constants import merge_constants
from ovgpu.passes.merge_masks import merge_masks
from ovgpu.passes.merge_products import merge_products
from ovgpu.passes.merge_quantized_products import merge_quantized_products
from ovgpu.passes.quantize_attention import quantize_attention
from ovgpu.passes.quantize_layers import quantize_layers
from ovgpu.passes.quantize_norms import quantize_norms
from ovgpu.passes.relax_shapes import relax_shapes
from ovgpu.passes.reshape_early import reshape_early
from ovgpu.passes.scale_channels import scale_channels
from ovgpu.passes.scale_norms import scale_norms
from ovgpu.passes.upcast_to_f32 import upcast_to_f32
from ovgpu.passes.verify import verify
from ovgpu.types import Type

graph.relax_shapes = relax_shapes


@dataclass(frozen=True)
class Target:
    """Device and element types that a model is rewritten for.

    ``device``: CUDA runs a chain of elementwise layers in one kernel, or in the kernel of a convolution. The CPU
    applies such chains to results of convolutions while these are in cache. The empty string turns fusion off.
    ``precision`` is the type that the model computes in, ``cache`` the type of its KV cache; `Type.dynamic` leaves them
    as they are. `lay_out_channels_last` calls ``channels_last``, and `quantize_layers` calls ``multiplies_i8``, only if
    the model has layers that they may rewrite. ``last_logits`` is `keep_last_logits`'s condition.
    """

    device: Literal["", "CPU", "CUDA"] = ""
    precision: Type = Type.dynamic
    cache: Type = Type.dynamic
    channels_last: Callable[[], Sequence[Type]] = tuple
    multiplies_i8: Callable[[], bool] = bool
    last_logits: bool = False

    @property
    def on_card(self) -> bool:
        return self.device == "CUDA"

    @property
    def half(self) -> Type | None:
        """The 16-bit type that the model computes in, None if it computes in another type."""
        return self.precision if self.precision in HALVES else None

    @property
    def cache_half(self) -> Type | None:
        """The 16-bit type that `downcast` gives the model's KV cache and attention to it, None for another type."""
        if not self.quantizes_cache:
            return self.cache if self.cache in HALVES else None
        return Type.f16 if self.attends_in_cache_type else self.half

    @property
    def attends_in_cache_type(self) -> bool:
        """True if attention computes in the type of the KV cache, or in f16 for a quantized one, also where the model
        computes in f32."""
        return self.on_card and self.precision == Type.dynamic

    @property
    def quantizes_cache(self) -> bool:
        """True if the model's KV cache is stored in 8 bits."""
        return self.cache in (Type.u8, Type.i8)


class Condition(NamedTuple):
    """Targets that a pass runs for: as text for printed tables, and as a function."""

    text: str
    holds: Callable[[Target], bool]


ALL = Condition("all", lambda _: True)
CUDA = Condition("CUDA", lambda target: target.on_card)
HOST = Condition("CPU", lambda target: target.device == "CPU")
ANY_DEVICE = Condition("all", lambda target: target.device != "")  # not if OVGPU_STOP_AT forbids fusion
LAST_LOGITS = Condition("all, if OVGPU_LAST_LOGITS=1", lambda target: target.last_logits)
STORED_CACHE = Condition(
    "all, for KV caches in another type", lambda target: target.quantizes_cache or target.cache_half is not None
)
IN_F32 = Condition("all, for f32", lambda target: target.precision == Type.f32)


Stage = Literal["simplify", "decode", "append", "batch", "fuse"]
"""Passes of the stages decode and append run among those of the stage fuse, for programs of decode steps. Those of the
stage append also run for programs of batches on a card, and those of the stage batch on the host."""


class Pass(NamedTuple):
    """Rewrite of a model in place: its function, stage, targets, and an example that `ovgpu ops --passes` prints.

    ``options`` returns the function's keyword arguments besides the model.
    """

    rewrite: Callable[..., Any]
    stage: Stage
    targets: Condition
    before: str
    after: str
    options: Callable[[Target], dict[str, Any]] = lambda _: {}

    @property
    def name(self) -> str:
        return self.rewrite.__name__

    def run(self, model: Model, target: Target) -> None:
        """Rewrite the model if the pass is for this target."""
        if self.targets.holds(target):
            self.rewrite(model, **self.options(target))


def _compressed_weight_options(target: Target) -> dict[str, Any]:
    # NumPy takes six times as long to convert weights of 16 bits as to multiply by them; cuBLAS reads them as they are.
    return {"device": target.on_card, "halves": target.on_card and target.half is None}


PASSES = (
    Pass(verify, "simplify", ALL, "unsupported operation, changed file, tensor of more than 64 axes", "an error"),
    Pass(keep_last_logits, "simplify", LAST_LOGITS, "logits [batch, length, vocabulary]", "[batch, 1, vocabulary]"),
    Pass(merge_constants, "simplify", ALL, "Constants with the same memory, as of a tied embedding", "one Constant"),
    Pass(infer_state_rank, "simplify", ALL, "ReadValue of unknown rank", "ReadValue of its initial value's rank"),
    Pass(upcast_to_f32, "simplify", IN_F32, "f16 or bf16 model", "f32 model with the same inputs and results"),
    Pass(
        convert_mixed_reals,
        "simplify",
        ALL,
        "PRelu of f16 with a slope of f32, and the like",
        "Convert → PRelu → Convert",
    ),
    Pass(canonicalise, "simplify", ALL, "equivalent forms of a layer", "the one form that later passes know"),
    Pass(
        guard_maxima, "simplify", ALL, "max + Log(ReduceSum(Exp(x - max)))", "the same with 0 for an infinite maximum"
    ),
    Pass(fuse_recurrent_loops, "simplify", ALL, "TensorIterator or Loop of a cell", "LSTMSequence, GRUSequence..."),
    # Before keep_weights_compressed, which replaces the layers that quantize_layers looks for.
    Pass(
        quantize_layers,
        "simplify",
        ALL,
        "FakeQuantize → Convolution or MatMul with weights of i8",
        "Quantize → the same layer of codes",
        lambda target: {"device": target.on_card, "multiplies_i8": target.multiplies_i8},
    ),
    # Before fold_constants, which would decompress the weights.
    Pass(
        keep_weights_compressed,
        "simplify",
        ALL,
        "Constant → Convert → Subtract → Multiply → MatMul",
        "CompressedMatMul",
        _compressed_weight_options,
    ),
    Pass(expand_einsum, "simplify", ALL, "Einsum", "Transpose, Reshape, MatMul, Multiply, ReduceSum"),
    Pass(
        fold_constants,
        "simplify",
        ALL,
        "layers of constants",
        "Constant",
        lambda target: {"halves": target.half is None},
    ),
    Pass(fuse_rotary, "simplify", ALL, "x * cos + Concat(-x[h:], x[:h]) * sin", "Rotary"),
    Pass(fuse_activations, "simplify", ALL, "x * Sigmoid(x), and the like", "Swish, Gelu, HSwish, Mish, Softmax..."),
    Pass(fuse_attention, "simplify", ALL, "MatMul → Multiply → Add → Softmax → MatMul", "ScaledDotProductAttention"),
    Pass(
        append_to_caches,
        "simplify",
        ALL,
        "ReadValue → Gather → Concat → Assign",
        "ReadValue → Reorder → CacheAppend → Assign",
    ),
    Pass(group_heads, "simplify", ALL, "keys and values repeated for every query head", "groups of query heads"),
    Pass(join_norms, "simplify", ALL, "(x - mean) / Sqrt(variance + eps), and the like", "MVN, RMS, NormalizeL2"),
    Pass(join_group_norms, "simplify", ALL, "Reshape → MVN → Reshape → Multiply → Add", "GroupNorm"),
    Pass(scale_norms, "simplify", ALL, "MVN or RMS → Multiply → Add", "ScaledMVN, ScaledRMS"),
    Pass(scale_channels, "simplify", ALL, "BatchNormInference", "Multiply → Add"),
    Pass(merge_masks, "simplify", ALL, "a mask computed for every attention", "one mask for all"),
    Pass(
        downcast,
        "simplify",
        ALL,
        "f32 products, convolutions, attention",
        "f16 or bf16, if that is the precision",
        lambda target: {
            "dtype": target.half,
            "cache_dtype": target.cache_half,
            "on_card": target.on_card,
            "attends_in_cache_dtype": target.attends_in_cache_type,
        },
    ),
    Pass(
        attend_to_stored,
        "simplify",
        STORED_CACHE,
        "CacheAppend → Convert → ScaledDotProductAttention",
        "CacheAppend of f16 or u8 → StoredAttention",
        lambda target: {"quantize": target.quantizes_cache},
    ),
    Pass(merge_products, "simplify", CUDA, "MatMuls of one tensor, such as q, k, v", "MatMul → VariadicSplit"),
    Pass(merge_quantized_products, "simplify", CUDA, "products of the same codes", "one product → VariadicSplit"),
    Pass(keep_products_exact, "simplify", CUDA, "MatMul of positions", "MatMul that is never in TF32"),
    Pass(append_rotated, "append", ALL, "Rotary of queries and keys, CacheWrites", "RotaryCacheWrite"),
    Pass(attend_rotated, "append", CUDA, "RotaryCacheWrite → CachedAttention", "RotaryAttention"),
    Pass(
        fuse_convolution_epilogues,
        "fuse",
        ANY_DEVICE,
        "Convolution → elementwise layers",
        "ConvolutionWithEpilogue",
        lambda target: {"device": target.on_card},
    ),
    # Before lay_out_weights, which lays out the others.
    Pass(lay_out_panels, "batch", HOST, "MatMul by a constant", "PanelMatMul by panels of its columns"),
    Pass(lay_out_weights, "fuse", HOST, "MatMul by a constant", "MatMul by its transpose, if BLAS is faster"),
    Pass(fuse_group_norm_epilogues, "fuse", CUDA, "GroupNorm → elementwise layers", "GroupNormWithEpilogue"),
    Pass(reshape_early, "fuse", CUDA, "elementwise → Reshape or Transpose", "Reshape or Transpose → elementwise"),
    Pass(fuse_elementwise, "fuse", CUDA, "elementwise → elementwise → ...", "Fused"),
    Pass(
        lay_out_channels_last,
        "fuse",
        CUDA,
        "Convolution → Convolution",
        "the same of tensors whose channels are adjacent",
        lambda target: {"types": target.channels_last},
    ),
    Pass(fuse_matmul_epilogues, "fuse", CUDA, "MatMul → bias → residual → activation", "MatMulWithEpilogue"),
    Pass(fuse_add_norms, "fuse", CUDA, "Add → ScaledMVN or ScaledRMS", "AddNorm"),
    Pass(quantize_norms, "fuse", CUDA, "norm → Quantize", "NormWithCodes"),
    Pass(
        quantize_attention,
        "fuse",
        CUDA,
        "ScaledDotProductAttention → Transpose → Reshape → Quantize",
        "AttentionWithCodes → Transpose → Reshape",
    ),
    Pass(fuse_prologues, "decode", CUDA, "norm or elementwise layers → MatMul", "MatMulWithPrologue"),
)


def prepare(model: Model, target: Target = Target()) -> Model:
    """Return a rewritten copy of the model, ready to be lowered: `simplify`, then `fuse_layers`."""
    model = simplify(model, target)
    fuse_layers(model, target)
    return model


def simplify(model: Model, target: Target = Target()) -> Model:
    """Return a simplified copy of the model: fewer kinds of layers, folded constants. The first part of `prepare`."""
    model = model.clone()
    _run({"simplify"}, model, target)
    return model


def fuse_layers(model: Model, target: Target, kind: Literal["model", "decode", "batch"] = "model") -> None:
    """Fuse successive layers in place: the last part of `prepare`.

    ``kind``: of the program. For "decode", also run the passes for decode steps, whose kernels compute a few rows; for
    "batch" only those that fuse writes to KV caches, on a card, as NumPy would copy pools, and those for batches on
    the host.
    """
    stages: set[Stage] = {"fuse"}
    if kind == "decode":
        stages |= {"decode", "append"}
    elif kind == "batch":
        stages.add("append" if target.on_card else "batch")
    _run(stages, model, target)


def _run(stages: Collection[Stage], model: Model, target: Target) -> None:
    for entry in PASSES:
        if entry.stage in stages:
            entry.run(model, target)
