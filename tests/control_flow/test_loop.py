"""Loop: its trip count, carried values and outputs.

The oracle is OpenVINO's CPU plugin, or NumPy by the specification: the plugin writes beyond the end of a concatenation
whose parts have an extent other than 1, drops tensors without elements, and overwrites parameters of the body that
pass straight through.
"""

from __future__ import annotations

import numpy as np

from tests.harness import Infer, Scenario, check
from tests.harness.layers import (
    add,
    broadcast,
    compare,
    convert,
    i64,
    mul,
    numbers,
    reduce,
    reshape,
    scalar,
    shape_of,
    transpose,
)

from .loop_nets import (
    BOTH,
    COUNTED,
    LONG,
    NOTHING,
    ONES,
    A,
    B,
    F,
    X,
    branch_in_loop,
    by_counter,
    captured,
    condition_carried,
    counts,
    double,
    doubled_rows,
    doubling,
    even_odd,
    expected,
    found_inside,
    grown,
    grows,
    iterator_in_loop,
    judged,
    levels,
    long_steps,
    loop_in_iterator,
    loop_in_loop,
    looped,
    nested,
    passes,
    rows_of_different_lengths,
    shape_carried,
    sliced,
    step_until,
    three_levels,
    typed,
    until,
    valued,
    without_counter_or_outputs_used,
)

SCENARIOS = [
    # the trip count
    judged("three-times", looped(doubling, [ONES], [(0, None)])),
    judged("thirteen-times", looped(doubling, [ONES], [(0, None)], trips=13)),
    *[
        valued(
            f"{n}-times-concatenated",
            looped(doubling, [ONES], BOTH, trips=n),
            *(expected(double, [ONES], BOTH, x, trips=n) for x in X[:2]),
        )
        for n in (1, 3, 13)
    ],
    valued("never", looped(doubling, [ONES], BOTH, trips=0), Infer(NOTHING, x=X[0]), Infer(NOTHING, x=X[1])),
    valued("count-is-a-parameter", looped(doubling, [ONES], BOTH, trips="n"), *counts(3, 1, 5, 3, 0, 2)),
    valued("count-is-int32", looped(doubling, [ONES], BOTH, trips="n", count_type="i32"), *counts(2, 4)),
    judged("count-is-a-vector", looped(doubling, [ONES], [(0, None)], trips=lambda net, x: i64(net, [4]))),
    valued(
        "count-is-computed",
        looped(
            doubling, [ONES], BOTH, trips=lambda net, x: add(net, net.parameter("i64", (), "n"), scalar(net, 2, "i64"))
        ),
        *(expected(double, [ONES], BOTH, X[0], trips=n + 2, n=np.array(n)) for n in (1, 3, 0)),
    ),
    valued(
        "count-from-data",
        looped(doubling, [ONES], BOTH, trips=lambda net, x: convert(net, reduce(net, "ReduceMax", x, [0, 1]), "i64")),
        *(expected(double, [ONES], BOTH, x, trips=int(x.max())) for x in (np.abs(X[0]) + 1, np.abs(X[1]) + 3)),
    ),
    judged("count-from-a-shape", sliced(), *(Infer(x=numbers(n, 3, seed=n)) for n in (4, 2, 6))),
    # conditions
    judged("unbounded-until-false", looped(until(500), [ONES], [(0, None)], trips=-1)),
    valued(
        "unbounded-until-false-concatenated",
        looped(until(500), [ONES], BOTH, trips=-1),
        *(expected(step_until(500), [ONES], BOTH, np.abs(x), trips=-1) for x in X),
    ),
    valued(
        "bounded-by-condition",
        looped(until(500), [ONES], BOTH, trips=40),
        *(expected(step_until(500), [ONES], BOTH, np.abs(x), trips=40) for x in X),
    ),
    valued(
        "bounded-by-count",
        looped(until(1e9), [ONES], BOTH, trips=4),
        *(expected(step_until(1e9), [ONES], BOTH, x, trips=4) for x in X[:2]),
    ),
    valued(
        "false-after-the-first",
        looped(until(-1e9), [ONES], BOTH, trips=4),
        *(expected(step_until(-1e9), [ONES], BOTH, x, trips=4) for x in X[:2]),
    ),
    valued(
        "count-or-condition",
        looped(until(200), [ONES], BOTH, trips="n"),
        *(
            expected(step_until(200), [ONES], BOTH, np.abs(x), trips=n, n=np.array(n), empty=NOTHING)
            for x in X[:2]
            for n in (1, 30, 3, 0)
        ),
    ),
    judged("body-says-false", looped(lambda b, i, p: (b.const(np.array(False)), [add(b, *p)]), [ONES], [(0, None)])),
    valued(
        "body-says-false-unbounded",
        looped(lambda b, i, p: (b.const(np.array([False])), [add(b, *p)]), [ONES], BOTH, trips=-1),
        Infer([X[0] + ONES, X[0] + ONES], x=X[0]),
    ),
    valued("not-begun", looped(doubling, [ONES], BOTH, start=False), Infer(NOTHING, x=X[0])),
    valued("not-begun-vector", looped(doubling, [ONES], BOTH, start=[False]), Infer(NOTHING, x=X[0])),
    judged("begun-vector", looped(doubling, [ONES], [(0, None)], start=[True])),
    valued(
        "begin-is-a-parameter",
        looped(doubling, [ONES], BOTH, start="go"),
        *(expected(double, [ONES], BOTH, X[0], start=go, empty=NOTHING, go=np.array(go)) for go in (True, False, True)),
    ),
    valued(
        "begin-and-count-are-parameters",
        looped(doubling, [ONES], BOTH, start="go", trips="n"),
        *(
            expected(double, [ONES], BOTH, X[0], trips=n, start=go, empty=NOTHING, go=np.array(go), n=np.array(n))
            for go, n in ((True, 3), (False, 3), (True, 0), (True, 1))
        ),
    ),
    valued(
        "not-begun-unbounded",
        looped(until(100), [ONES], BOTH, start="go", trips=-1),
        Infer(NOTHING, x=X[0], go=np.array(False)),
    ),
    valued("condition-is-carried", condition_carried(), Infer([X[0] + 2, np.array([True])], x=X[0])),
    valued(
        "until-the-counter-says-so",
        looped(lambda b, i, p: (compare(b, "Less", i, scalar(b, 4, "i64")), [add(b, *p)]), [ONES], BOTH, trips=-1),
        expected(lambda i, x, h: (i < 4, [x + h]), [ONES], BOTH, X[0], trips=-1),
    ),
    # the iteration number, also with other types and shapes
    *[s for how in COUNTED for s in by_counter(how)],
    *by_counter("maths", counter=("i32", ())),
    *by_counter("maths", counter=("i64", (1,))),
    *by_counter("slice", counter=("i64", (1,))),
    # carried values
    judged(
        "two-carried",
        looped(lambda b, i, p: (None, [add(b, p[0], p[1]), mul(b, p[1], p[2])]), [A, B], [(0, None), (1, None)]),
    ),
    valued(
        "swap",
        looped(lambda b, i, p: (None, [p[2], p[1], add(b, p[0], p[1])]), [A, B], [(0, None), (1, None), (2, 0)]),
        *(expected(lambda i, x, a, b: (True, [b, a, x + a]), [A, B], [(0, None), (1, None), (2, 0)], x) for x in X[:2]),
    ),
    valued(
        "swap-even-times",
        looped(lambda b, i, p: (None, [p[2], p[1]]), [A, B], [(0, None), (1, None)], trips=4),
        Infer([A, B], x=X[0]),
    ),
    valued(
        "fibonacci",
        looped(lambda b, i, p: (None, [p[2], add(b, p[1], p[2])]), [ONES, ONES], [(0, None), (1, 0)], trips=8),
        expected(lambda i, x, a, b: (True, [b, a + b]), [ONES, ONES], [(0, None), (1, 0)], X[0], trips=8),
    ),
    valued(
        "carried-unchanged",
        looped(lambda b, i, p: (None, [p[1], add(b, *p)]), [A], [(0, None), (1, 0)]),
        expected(lambda i, x, a: (True, [a, x + a]), [A], [(0, None), (1, 0)], X[0]),
    ),
    valued(
        "outside-value-goes-in-and-out",
        looped(lambda b, i, p: (None, [p[0]]), [A], [(0, None), (0, 0)]),
        expected(lambda i, x, a: (True, [x]), [A], [(0, None), (0, 0)], X[0]),
    ),
    valued(
        "transposed-on-the-way",
        looped(
            lambda b, i, p: (None, [transpose(b, p[1], [1, 0]), p[0]]), [numbers(3, 3, seed=3)], [(0, None), (0, 0)]
        ),
        expected(lambda i, x, a: (True, [a.T, x]), [numbers(3, 3, seed=3)], [(0, None), (0, 0)], X[0]),
    ),
    valued(
        "constants-only",
        looped(lambda b, i, p: (None, [b.const(A)]), [], [(0, None), (0, 0)]),
        expected(lambda i, x: (True, [A]), [], [(0, None), (0, 0)], X[0]),
    ),
    *[
        valued(
            f"concatenated-along-axis-{axis}",
            looped(doubling, [ONES], [(0, axis), (0, None)]),
            *(expected(double, [ONES], [(0, axis), (0, None)], x) for x in X[:2]),
        )
        for axis in (1, -1, -2)
    ],
    valued(
        "concatenated-along-two-axes",
        looped(doubling, [ONES], [(0, 0), (0, 1), (0, None)]),
        *(expected(double, [ONES], [(0, 0), (0, 1), (0, None)], x) for x in X[:2]),
    ),
    valued(
        "concatenated-in-reverse",
        looped(doubling, [ONES], [(0, 0)], out={"start": -1, "end": 0, "stride": -1}),
        *(
            Infer([np.concatenate([((ONES * 2 + x) * 2 + x) * 2 + x, (ONES * 2 + x) * 2 + x, ONES * 2 + x])], x=x)
            for x in X[:2]
        ),
    ),
    judged("values-from-outside", captured()),
    judged("an-output-nobody-uses", without_counter_or_outputs_used()),
    valued(
        "outputs-feed-shapes",
        looped(
            doubling,
            [ONES],
            BOTH,
            trips="n",
            then=lambda net, p: [broadcast(net, scalar(net, 1.5), shape_of(net, p[1])), reshape(net, p[1], [-1])],
        ),
        *(
            Infer(
                [
                    np.full((2 * n, 3), 1.5, F),
                    expected(double, [ONES], [(0, 0)], X[0], trips=n).expect[0].array.ravel(),
                ],
                x=X[0],
                n=np.array(n),
            )
            for n in (2, 5, 1)
        ),
    ),
    # shapes that change
    valued("grows-along-the-first-axis", grows(0), *(grown(0, n, numbers(1, 3, seed=n)) for n in (3, 1, 5, 3))),
    valued("grows-along-the-last-axis", grows(1), *(grown(1, n, numbers(1, 3, seed=n)) for n in (2, 4))),
    valued(
        "parts-of-different-lengths",
        rows_of_different_lengths(),
        *(Infer([np.concatenate([x[:i] for i in range(4)])], x=x) for x in (numbers(5, 3), numbers(5, 3, seed=1))),
    ),
    valued("carries-a-shape", shape_carried(), *(Infer([x.reshape(1, 6), np.array([6, 1])], x=x) for x in X[:2])),
    valued(
        "finds-inside",
        found_inside(),
        *(
            Infer([np.array([sum((x > i).sum() for i in range(3))]), np.cumsum([(x > i).sum() for i in range(3)])], x=x)
            for x in X[:3]
        ),
    ),
    # nesting
    valued("loop-in-a-loop", loop_in_loop("two"), *(nested(x, [2, 2, 2]) for x in X[:2])),
    valued("inner-count-is-the-outer-counter", loop_in_loop("counter"), *(nested(x, [0, 1, 2]) for x in X[:2])),
    valued("iterator-in-a-loop", iterator_in_loop(), *(passes(numbers(4, 3, seed=n)) for n in range(2))),
    valued(
        "loop-in-an-iterator", loop_in_iterator(), *(doubled_rows(np.abs(numbers(n, 3, seed=n)) + 1) for n in (3, 5))
    ),
    valued("branch-in-a-loop", branch_in_loop(), *(even_odd(x) for x in X[:2])),
    valued("three-levels", three_levels(), *(levels(x) for x in X)),
    *[typed(kind) for kind in ("f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8")],
    # long
    valued("long", LONG, *long_steps(10_000, 3, 2_001, 10_000), emulated=False),
    valued(
        "long-and-concatenated",
        looped(lambda b, i, p: (None, [add(b, p[0], p[1])]), [ONES], BOTH, trips=10_000),
        Infer([ONES + F(10_000) * X[0], np.concatenate([ONES + F(n + 1) * X[0] for n in range(10_000)])], x=X[0]),
        emulated=False,
    ),
    valued(
        "long-until-the-counter-says-so",
        looped(
            lambda b, i, p: (compare(b, "Less", i, scalar(b, 4_999, "i64")), [add(b, *p)]),
            [ONES],
            [(0, None)],
            trips=-1,
        ),
        Infer([ONES + F(5_000) * X[0]], x=X[0]),
        emulated=False,
    ),
    # errors
    Scenario(
        "back-edge-of-another-type",
        looped(lambda b, i, p: (None, [convert(b, p[1], "i32")]), [ONES], [(0, None)]),
        [Infer(x=X[0])],
        error="f32|i32",
        error_op="Loop",
    ),
    Scenario(
        "trip-count-of-two",
        looped(doubling, [ONES], BOTH, trips=lambda net, x: i64(net, [2, 3])),
        [Infer(x=X[0])],
        error="trip count",
        error_op="Loop",
    ),
    Scenario(
        "no-value-without-iterations",
        looped(doubling, [ONES], [(0, None)], back=[-1], trips=0),
        [Infer(x=X[0])],
        error="no iteration",
        error_op="Loop",
    ),
    Scenario(
        "no-value-without-iterations-after-some",
        looped(doubling, [ONES], [(0, None)], back=[-1], trips="n"),
        [Infer(x=X[0], n=2), Infer(x=X[0], n=0)],
        error="no iteration",
        error_op="Loop",
    ),
    Scenario(
        "begin-is-no-boolean",
        looped(doubling, [ONES], BOTH, start=1),
        [Infer(x=X[0])],
        error="execution condition",
        error_op="Loop",
    ),
    Scenario(
        "condition-of-two",
        looped(doubling, [ONES], BOTH, start=[True, False]),
        [Infer(x=X[0])],
        error="condition",
        error_op="Loop",
    ),
    Scenario(
        "trip-count-is-no-integer",
        looped(doubling, [ONES], BOTH, trips=lambda net, x: scalar(net, 3.0)),
        [Infer(x=X[0])],
        error="trip count",
        error_op="Loop",
    ),
    Scenario(
        "concatenated-along-no-axis",
        looped(doubling, [ONES], [(0, 2)]),
        [Infer(x=X[0])],
        error="axis 2 of rank 2",
        error_op="Loop",
    ),
]
test_loop = check(SCENARIOS)
