"""Connectionist temporal classification: CTCGreedyDecoder, CTCGreedyDecoderSeqLen, CTCLoss.

Sequences may be shorter than the tensors that hold them. A length out of range is an error, except on a CUDA device,
where it is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.segments import check_numbers
from ovgpu.ops.base.shapes import at_most, check_reals, integer, length
from ovgpu.ops.base.storage import compute_dtype
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, same, unknown
from ovgpu.types import Type

THREADS = 256  # threads per block, which decodes one sequence
SHARED_BYTES = 48 << 10  # shared memory that a block may use


class _Ctc(Op):
    """Base of the CTC ops: extents that several inputs share, and the blank class."""

    layout = "dense"

    def extent(self, what: str, *shared: tuple[Spec, int]) -> Int:
        """Return the extent that these axes share. Raises OpError if they differ; ``what`` names the extent."""
        known = [spec.shape[axis] for spec, axis in shared if spec.shape is not None]
        for other in known[1:]:
            same(known[0], other, f"the inputs have {{0}} and {{1}} {what}")
        return known[0] if known else unknown()

    def blank(self, classes: int, given: Array | None) -> int:
        """Return the blank class: the last one unless another is given; -1 if the given index is no class."""
        index = classes - 1 if given is None else integer(given, "blank_index")
        return index if 0 <= index < classes else -1


class _Greedy(_Ctc):
    """Base of greedy decoding: take the most probable class of every step, then drop blanks and, optionally,
    repetitions.

    Of equally probable classes the first wins; NaN never wins.
    """

    def collapse(self, xp: Adapter, best: Array, lengths: Array, blank: int, merges: bool) -> tuple[Array, Array]:
        """Return the decoded classes [N, T], padded with -1, and their counts [N]."""
        selected = (xp.arange(best.shape[1]) < lengths[:, None]) & (best != blank)
        if merges:
            selected[:, 1:] &= best[:, 1:] != best[:, :-1]
        return compact(xp, best, selected), selected.sum(axis=1)

    def record(
        self,
        k: KernelRecorder,
        x: Array,
        bounds: Array,
        outputs: Sequence[Array],
        sizes: tuple[int, int],
        blank: int,
        merges: bool,
    ) -> Any:
        """Record the launches; ``bounds`` are lengths [N] for x [N, T, C], or masks [T, N] for x [T, N, C]."""
        batch, steps = sizes
        classes, lengths = outputs
        masked = bounds.ndim == 2
        if not launch.is_real(x) or x.size > launch.MAX_INDEX:
            return NotImplemented
        if not classes.size:
            if lengths is not None and batch:
                k.copy(np.zeros((), lengths.dtype), lengths)
            return None
        best = k.scratch((batch * steps,), np.dtype(np.int32))
        block = launch.row_block(k.multiprocessors, batch * steps, x.shape[2])
        k.kernel(
            "ctc.cu",
            f"best_classes<{k.c_type(x.dtype)}>",
            (launch.ceildiv(batch * steps, block[1]),),
            block,
            (x, best, np.int32(batch * steps), np.int32(x.shape[2])),
        )
        count = "int" if lengths is None else k.c_type(lengths.dtype)
        pitches = (batch, 1) if masked else (1, steps)  # elements from step to step, and from sequence to sequence
        k.kernel(
            "ctc.cu",
            f"collapse<{k.c_type(bounds.dtype)}, {k.c_type(classes.dtype)}, {count}>",
            (batch,),
            (THREADS,),
            (
                best,
                bounds,
                classes,
                lengths,
                *map(np.int32, (steps, *pitches, blank)),
                np.bool_(merges),
                np.bool_(masked),
            ),
        )
        return None


def compact(xp: Adapter, x: Array, chosen: Array) -> Array:
    """Return the chosen elements of every row, moved to its front in order and padded with -1."""
    order = xp.argsort(~chosen, axis=1, kind="stable")
    left = xp.arange(x.shape[1]) < chosen.sum(axis=1)[:, None]
    return xp.where(left, xp.take_along_axis(x, order, axis=1), -1)


def best_class(xp: Adapter, x: Array) -> Array:
    """Return the index of the largest element along axis 2; NaN counts as minus infinity."""
    return xp.argmax(xp.where(xp.isnan(x), -np.inf, x), axis=2)


def check_lengths(lengths: Array, max_length: int) -> None:
    """Raise OpError unless all lengths are from 0 to ``max_length``."""
    if ((lengths < 0) | (lengths > max_length)).any():
        raise OpError(f"a length is out of range for {max_length} steps")


@op("CTCGreedyDecoder", "opset1", "sequence/ctc-greedy-decoder-1")
class CTCGreedyDecoder(_Greedy):
    """``data [T, N, C], mask [T, N] -> [N, T, 1, 1]``: the classes as floating-point numbers, padded with -1.

    A sequence ends at the first 0 of its mask; the last class is the blank.

    >>> ctc_greedy_decoder([[[1.0, 0]], [[1, 0]], [[0, 1]], [[1, 0]]], [[1.0], [1], [1], [1]])
    [[[[0.0]], [[0.0]], [[-1.0]], [[-1.0]]]]
    """

    ctc_merge_repeated: bool = True

    def infer_specs(self, x: Spec, mask: Spec) -> tuple[Spec, ...]:
        check_reals(x, "the data", ranks=(3,))
        check_reals(mask, "the mask", ranks=(2,))
        check_classes(x)
        steps, batch = self.extent("steps", (x, 0), (mask, 0)), self.extent("sequences", (x, 1), (mask, 1))
        return (Spec(x.type, (batch, steps, 1, 1)),)

    def evaluate(self, xp: Adapter, x: Array, mask: Array) -> tuple[Array, ...]:
        lengths = xp.cumprod((mask != 0).astype(np.int64), axis=0).sum(axis=0)
        blank = self.blank(x.shape[2], None)
        classes, _ = self.collapse(xp, best_class(xp, x).T, lengths, blank, self.ctc_merge_repeated)
        return (classes[:, :, None, None].astype(x.dtype),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, mask = inputs
        if not launch.is_real(mask):
            return NotImplemented
        return self.record(
            k,
            x,
            mask,
            (outputs[0], None),
            (x.shape[1], x.shape[0]),
            self.blank(x.shape[2], None),
            self.ctc_merge_repeated,
        )


@op("CTCGreedyDecoderSeqLen", "opset6", "sequence/ctc-greedy-decoder-seq-len-6")
class CTCGreedyDecoderSeqLen(_Greedy):
    """``data [N, T, C], lengths [N], blank_index [] (optional) -> classes [N, T], lengths [N]``; the classes are padded
    with -1. By default, the last class is the blank.

    >>> ctc_greedy_decoder_seq_len([[[1.0, 0], [1, 0], [0, 1], [1, 0]]], i32([4]))
    ([[0, 0, -1, -1]], [2])
    """

    merge_repeated: bool = True
    classes_index_type: Type = Type.i32
    sequence_length_type: Type = Type.i32

    host_inputs = (2,)

    def infer_specs(self, x: Spec, lengths: Spec, blank: Spec | None = None) -> tuple[Spec, ...]:
        for what in ("classes_index_type", "sequence_length_type"):
            if getattr(self, what) not in (Type.i32, Type.i64):
                raise OpError(f"{what} {getattr(self, what).get_type_name()} is neither i32 nor i64")
        check_reals(x, "the data", ranks=(3,))
        check_numbers(lengths, "sequence lengths", 1)
        check_classes(x)
        if blank is not None:
            check_numbers(blank, "blank_index", 0 if blank.rank == 0 else 1)
            if length(blank) not in (None, 1):
                raise OpError(f"blank_index is one number, not {length(blank)}")
        batch = self.extent("sequences", (x, 0), (lengths, 0))
        steps = self.extent("steps", (x, 1))
        return Spec(self.classes_index_type, (batch, steps)), Spec(self.sequence_length_type, (batch,))

    def evaluate(self, xp: Adapter, x: Array, lengths: Array, blank: Array | None = None) -> tuple[Array, ...]:
        check_lengths(lengths, x.shape[1])
        return self.collapse(xp, best_class(xp, x), lengths, self.blank(x.shape[2], blank), self.merge_repeated)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, lengths, *rest = inputs
        blank = self.blank(x.shape[2], rest[0] if rest else None)
        return self.record(k, x, lengths, outputs, x.shape[:2], blank, self.merge_repeated)


def check_classes(x: Spec) -> None:
    """Raise OpError if the data [.., .., C] have no classes."""
    if x.shape is not None:
        at_most(1, x.shape[2], "there are no classes")


@op("CTCLoss", "opset4", "sequence/ctc-loss-4")
class CTCLoss(_Ctc):
    """``logits [N, T, C], logit lengths [N], labels [N, T], label lengths [N], blank_index [] (optional) -> [N]``: the
    CTC loss (Graves et al. 2006), the negative log-probability that classes drawn step by step decode to the labels.

    Decoding removes blanks, and first merges repetitions if ``ctc_merge_repeated``. Of consecutive equal labels only
    the first counts if ``preprocess_collapse_repeated``; of all equal labels only the first counts if ``unique``. The
    loss is infinite if the labels are impossible, for example if a label is no class. OpenVINO reads absent flags as
    false; its CPU plugin crashes without labels, and is wrong where repetitions leave too few steps.

    >>> ctc_loss([[[0.0, 0], [0, 0]]], i32([2]), i32([[0, 0]]), i32([1]))
    [0.2877]
    """

    preprocess_collapse_repeated: bool = False
    ctc_merge_repeated: bool = True
    unique: bool = False

    host_inputs = (4,)

    def infer_specs(
        self, x: Spec, x_lengths: Spec, labels: Spec, lengths: Spec, blank: Spec | None = None
    ) -> tuple[Spec, ...]:
        check_reals(x, "the logits", ranks=(3,))
        for spec, what, rank in (
            (x_lengths, "logit lengths", 1),
            (labels, "labels", 2),
            (lengths, "label lengths", 1),
            (blank, "blank_index", 0),
        ):
            if spec is not None:
                check_numbers(spec, what, rank)
        check_classes(x)
        known = None if blank is None else blank.ints()
        if known is not None and x.shape is not None:
            at_most(0, known[0], "blank_index {1} is negative")
            at_most(known[0] + 1, x.shape[2], "blank_index is no class of {1}")
        self.extent("steps", (x, 1), (labels, 1))
        return (Spec(x.type, (self.extent("sequences", (x, 0), (x_lengths, 0), (labels, 0), (lengths, 0)),)),)

    def evaluate(
        self, xp: Adapter, x: Array, x_lengths: Array, labels: Array, lengths: Array, blank: Array | None = None
    ) -> tuple[Array, ...]:
        batch, steps, classes = x.shape
        check_lengths(x_lengths, steps)
        check_lengths(lengths, steps)
        if (lengths > x_lengths).any():
            raise OpError("there are more labels than steps")
        if not batch:
            return (xp.zeros(0, x.dtype),)
        labels, lengths = self.targets(xp, labels.astype(np.int64), lengths)
        # The forward algorithm, on states that alternate: a blank, a label, a blank, a label, ..., a blank.
        count = 2 * int(lengths.max()) + 1
        states = xp.full((batch, count), self.blank(classes, blank))
        states[:, 1::2] = labels[:, : count // 2]
        known, chosen = (states >= 0) & (states < classes), xp.clip(states, 0, classes - 1)
        is_label = xp.arange(count) % 2 == 1
        skips = is_label & (xp.arange(count) > 1)
        if self.ctc_merge_repeated:
            differs = xp.ones(states.shape, bool)
            differs[:, 2:] = states[:, 2:] != states[:, :-2]
            skips = skips & differs
        x = x - x.max(axis=2, keepdims=True)
        x = x - xp.log(xp.exp(x).sum(axis=2, keepdims=True))
        alpha = xp.full((batch, count + 2), -np.inf, x.dtype)  # with two unreachable states in front
        alpha[:, 2] = 0
        for step in range(int(x_lengths.max())):
            stays = alpha[:, 2:] if self.ctc_merge_repeated else xp.where(is_label, -np.inf, alpha[:, 2:])
            paths = [stays, alpha[:, 1:-1], xp.where(skips, alpha[:, :-2], -np.inf)]
            emission = xp.where(known, xp.take_along_axis(x[:, step], chosen, axis=1), -np.inf)
            updated = log_sum_exp(xp, paths) + emission
            alpha[:, 2:] = xp.where(step < x_lengths[:, None], updated, alpha[:, 2:])
        last = 2 * lengths[:, None] + 2
        ends = [xp.take_along_axis(alpha, last - n, axis=1)[:, 0] for n in range(2)]
        return (-log_sum_exp(xp, ends),)

    def targets(self, xp: Adapter, labels: Array, lengths: Array) -> tuple[Array, Array]:
        """Return the labels [N, T] that count, padded with -1, and their counts [N]."""
        positions = xp.arange(labels.shape[1])
        selected = positions < lengths[:, None]
        if self.unique:
            equal = labels[:, :, None] == labels[:, None, :]
            selected &= ~(equal & (positions < positions[:, None])).any(axis=2)
        elif self.preprocess_collapse_repeated:
            selected[:, 1:] &= labels[:, 1:] != labels[:, :-1]
        return compact(xp, labels, selected), selected.sum(axis=1)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, x_lengths, labels, lengths, *rest), out = inputs, outputs[0]
        batch, steps, classes = x.shape
        wide = compute_dtype(Type.of(x.dtype))
        shared = 2 * wide.itemsize * (2 * steps + 1) + 4 * steps
        if not launch.is_real(x) or x.size > launch.MAX_INDEX or shared > SHARED_BYTES:
            return NotImplemented
        if not batch:
            return None
        c_type, sums = k.c_type(x.dtype), k.scratch((batch, steps), wide)
        if x.size:
            block = launch.row_block(k.multiprocessors, batch * steps, classes)
            k.kernel(
                "ctc.cu",
                f"log_sums<{c_type}>",
                (launch.ceildiv(batch * steps, block[1]),),
                block,
                (x, sums, np.int32(batch * steps), np.int32(classes)),
            )
        k.kernel(
            "ctc.cu",
            f"ctc_loss<{c_type}, {k.c_type(lengths.dtype)}, {k.c_type(labels.dtype)}>",
            (batch,),
            (launch.power(2 * steps + 1, low=32),),
            (
                x,
                sums,
                x_lengths,
                labels,
                lengths,
                out,
                *map(np.int32, (steps, classes, self.blank(classes, rest[0] if rest else None))),
                *map(np.bool_, (self.preprocess_collapse_repeated, self.ctc_merge_repeated, self.unique)),
            ),
            shared,
        )
        return None


def log_sum_exp(xp: Adapter, values: Sequence[Array]) -> Array:
    """Return the log-sum-exp of arrays, element by element."""
    terms = xp.stack(values)
    highest = terms.max(axis=0)
    highest = xp.where(highest == -np.inf, 0, highest)
    return xp.log(xp.exp(terms - highest).sum(axis=0)) + highest
