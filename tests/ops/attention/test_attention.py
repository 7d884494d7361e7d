"""ScaledDotProductAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, given
from tests.harness.sweep import sweep

N, H, L, S, E, EV = 2, 3, 5, 7, 6, 4
Q, K, V = In((N, H, L, E)), In((N, H, S, E)), In((N, H, S, EV))
GROUPS = In((N, 2, 1, S, E)), In((N, 2, 1, S, EV))
LONG = In((2, 3, 300, 16)), In((2, 1, 301, 16)), In((2, 1, 301, 8))  # more than one block of scores
F64 = In((N, L, E), "f64"), In((N, S, E), "f64"), In((N, S, EV), "f64")
SCALE = given(np.float32(0.3))
CAUSAL = {"causal": True}


def sdpa(id: str, *inputs: In, causal: bool = False, rankless: bool = False, **how: Any) -> Case:
    return Case(
        "ScaledDotProductAttention", "opset13", inputs, {"causal": causal}, id=id, rankless=rankless, tol=Sum(S), **how
    )


def visible(*shape: int) -> In:
    """Return a boolean mask in which every row attends to at least one key."""

    def data(rng: np.random.Generator) -> np.ndarray[Any, Any]:
        mask = rng.integers(0, 2, shape).astype(bool)
        mask[..., int(shape[-1] > 1)] = True
        return mask

    return In(shape, "boolean", data)


def hidden_by_infinity(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.where(np.arange(S) > np.arange(L)[:, None], -np.inf, 0.0)


def attention_of_bytes(q: Any, k: Any, v: Any, mask: Any) -> np.ndarray[Any, Any]:
    scores = np.einsum("nhle,nhse->nhls", *(x.astype(np.float64) for x in (q, k))) / np.sqrt(E)
    weights = np.exp(scores) * mask
    result = np.einsum("nhls,nhse->nhle", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))
    return result.astype(np.float32).astype(q.dtype)


CASES = [
    sdpa("plain", Q, K, V, rankless=True),
    sdpa("causal", Q, K, V, causal=True, rankless=True),
    sdpa("causal_more_queries", In((N, H, 9, E)), K, V, causal=True),
    sdpa("causal_one_query", In((N, H, 1, E)), K, V, causal=True),
    sdpa("mask", Q, K, V, In((N, H, L, S)), rankless=True),
    sdpa("mask_rank_2", Q, K, V, In((L, S))),
    sdpa("mask_rank_3", Q, K, V, In((H, L, S))),
    sdpa("mask_of_one_row", Q, K, V, In((N, 1, 1, S))),
    sdpa("mask_by_batch", Q, K, V, In((N, 1, L, S))),
    sdpa("mask_infinite", Q, K, V, In((L, S), "f32", hidden_by_infinity)),
    sdpa("mask_boolean", Q, K, V, visible(L, S)),
    sdpa("mask_boolean_rank_4", Q, K, V, visible(N, H, L, S), rankless=True),
    sdpa("mask_boolean_of_one_row", Q, K, V, visible(N, 1, 1, S)),
    sdpa("mask_ignored", Q, K, V, In((L, S)), causal=True),
    sdpa("mask_scalar", Q, K, V, given(np.float32(0))),
    sdpa("scale", Q, K, V, In((L, S)), SCALE),
    sdpa("scale_of_one_element", Q, K, V, given(np.float32(0)), given([0.7], "f32")),
    sdpa("scale_causal", Q, K, V, given(np.float32(0)), SCALE, causal=True),
    sdpa("sink_by_head", Q, K, V, given(np.float32(0)), SCALE, In((1, H, 1, 1))),
    sdpa("sink_by_row", Q, K, V, In((L, S)), SCALE, In((N, H, L, 1))),
    sdpa("sink_causal", Q, K, V, given(np.float32(0)), SCALE, In((1, H, 1, 1)), causal=True),
    sdpa("one_query", In((N, H, 1, E)), K, V, In((N, 1, 1, S))),
    sdpa("one_key", Q, In((N, H, 1, E)), In((N, H, 1, EV))),
    sdpa("rank_3", In((N, L, E)), In((N, S, E)), In((N, S, EV)), rankless=True),
    sdpa("rank_3_broadcast", In((1, L, E)), In((N, S, E)), In((N, S, EV))),
    sdpa("rank_5_broadcast", In((2, 1, 3, L, E)), In((2, 3, 1, S, E)), In((1, 3, 3, S, EV))),
    sdpa("ranks_differ", Q, In((H, S, E)), In((H, S, EV))),
    sdpa("shared_keys", Q, In((N, 1, S, E)), In((N, 1, S, EV))),
    sdpa("shared_keys_one_query", In((N, H, 1, E)), In((N, 1, S, E)), In((N, 1, S, EV)), In((N, 1, 1, S))),
    sdpa("groups_one_query", In((N, 2, H, 1, E)), *GROUPS, In((N, 1, 1, 1, S))),
    sdpa("groups_sink", In((N, 2, H, 1, E)), *GROUPS, visible(1, S), SCALE, In((1, 2, H, 1, 1))),
    sdpa("batch_of_the_mask", In((1, H, L, E)), In((1, H, S, E)), In((1, H, S, EV)), In((N, H, L, S))),
    sdpa("f16", In((N, L, E), "f16"), In((N, S, E), "f16"), In((N, S, EV), "f16")),
    sdpa("bf16", In((N, L, E), "bf16"), In((N, S, E), "bf16"), In((N, S, EV), "bf16"), In((1, L, S), "bf16")),
    sdpa("f16_causal", In((N, L, E), "f16"), In((N, S, E), "f16"), In((N, S, EV), "f16"), causal=True),
    sdpa("f64", *F64, rankless=True),
    sdpa("f64_mask_scale_sink", *F64, In((L, S), "f64"), given(np.float64(0.3)), In((1, L, 1), "f64")),
    sdpa("f64_causal", *F64, causal=True),
    sdpa("f64_boolean_more_queries", In((N, 9, E), "f64"), *F64[1:], visible(9, S)),
    # OpenVINO accepts 8-bit types, but cannot compute with them
    sdpa("f8", *[In(x.shape, "f8e4m3") for x in (Q, K, V)], visible(L, S), expect=attention_of_bytes),
    sdpa("blocks", *LONG, In((1, 1, 300, 301))),
    sdpa("blocks_causal", *LONG, causal=True),
    sdpa("blocks_boolean_sink", *LONG, visible(300, 301), SCALE, In((1, 3, 1, 1))),
    sdpa("nothing_visible", Q, K, V, given(np.zeros((L, S), bool))),
    sdpa("no_queries", In((N, H, 0, E)), K, V, oracle="value", expect=np.zeros((N, H, 0, EV), np.float32)),
    # the plugin does not write the output
    sdpa("no_keys", Q, In((N, H, 0, E)), In((N, H, 0, EV)), expect=np.zeros((N, H, L, EV), np.float32)),
]
test_cases = check(CASES)


def wrong(error: str, *inputs: In) -> Case:
    return Case("ScaledDotProductAttention", "opset13", inputs, {"causal": False}, error=error)


ERRORS = [
    wrong("query must have rank 3 or more, not 2", In((L, E)), In((S, E)), In((S, EV))),
    wrong("query and key have 6 and 5 elements", Q, In((N, H, S, 5)), V),
    wrong("7 keys and 8 values", Q, K, In((N, H, 8, EV))),
    wrong("batch dimensions do not broadcast", In((N, 6, L, E)), In((N, 2, S, E)), In((N, 2, S, EV))),
    wrong("a mask of 6 columns does not fit 7 keys", Q, K, V, In((L, 6))),
    wrong("a mask of . rows do not broadcast", Q, K, V, In((4, S))),
    wrong("mask must have rank 2 or more, not 1", Q, K, V, In((S,))),
    wrong("scale must have one element, not 2", Q, K, V, In((L, S)), In((2,))),
    wrong("sink must have rank 4, not 1", Q, K, V, In((L, S)), SCALE, In((H,))),
    wrong("element type i32 is not real", Q, K, V, In((L, S), "i32")),
    wrong("element type i32 is not real", In((N, L, E), "i32"), In((N, S, E), "i32"), In((N, S, EV), "i32")),
    wrong("element types differ", Q, In((N, H, S, E), "f16"), V),
    wrong("element types differ", Q, K, V, In((L, S), "f16")),
    wrong("element types differ", Q, K, V, In((L, S)), given(np.float16(0.3))),
    wrong("element types differ", Q, K, V, In((L, S)), SCALE, In((N, H, L, 1), "f16")),
]
test_errors = check(ERRORS)


@st.composite
def attentions(draw: st.DrawFn) -> Case:
    kind, causal = draw(st.sampled_from(["f32", "f32", "f16", "bf16"])), draw(st.booleans())
    batch = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))

    def smaller() -> list[int]:
        return [draw(st.sampled_from([d, d, 1])) for d in batch]

    rows, keys, depth, width = (draw(st.integers(1, 11)) for _ in range(4))
    broadcast = smaller() if draw(st.booleans()) else batch
    shapes = [[*batch, rows, depth], [*broadcast, keys, depth], [*broadcast, keys, width]]
    inputs = [In(shape, kind, low=-2, high=2) for shape in shapes]
    extra = draw(st.integers(0, 3))
    if extra:
        across = draw(st.sampled_from([keys, keys, 1]))
        of_mask = draw(
            st.sampled_from(
                [(), (draw(st.sampled_from([rows, 1])), across), (*smaller(), rows, across), (*smaller(), 1, across)]
            )
        )
        boolean = of_mask and draw(st.booleans())
        inputs.append(visible(*of_mask) if boolean else In(of_mask, kind) if of_mask else given(np.float32(0), kind))
    if extra > 1:
        inputs.append(In(draw(st.sampled_from([(), (1,)])), kind, low=0.1, high=1))
    if extra > 2:
        inputs.append(In((*smaller(), draw(st.sampled_from([rows, 1])), 1), kind))
    return sdpa("drawn", *inputs, causal=causal)


test_random = sweep(attentions())
