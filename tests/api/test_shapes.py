"""Dimension, Shape, PartialShape and Layout, compared with openvino's."""

from __future__ import annotations

import pytest

from ovgpu.types import Dimension, Layout, PartialShape, Shape

from .both import OPENVINO, OURS, agree, check, evaluate, members, outcome, product, table


@agree(["Dimension(1)", "PartialShape([1])", "Shape([1])", "Strides([1])", "Layout('N')"])
def test_has_every_public_member(code: str) -> None:
    assert members(evaluate(OPENVINO, code)) <= members(evaluate(OURS, code))


# --- dimensions and shapes ---

DIMENSIONS = table("""
    Dimension() | Dimension(-1) | Dimension(0) | Dimension(3) | Dimension(1, 10) | Dimension(-1, 10)
    Dimension(1, -1) | Dimension(0, -1) | Dimension(4, 4) | Dimension('?') | Dimension('-1')
    Dimension('1..10') | Dimension('..10') | Dimension('3..') | Dimension('..') | Dimension(' 5 ')
    Dimension('-1..5') | Dimension(np.int64(3)) | Dimension(True) | Dimension(2**62)
    Dimension(1, 2**63 - 1) | Dimension.dynamic() | Dimension(dimension=3)
    Dimension(min_dimension=1, max_dimension=3)
""")

BAD_DIMENSIONS = table("""
    Dimension('a') | Dimension('1 .. 3') | Dimension('1..a') | Dimension('1..5..7') | Dimension('+3')
    Dimension(3.0) | Dimension(None) | Dimension([1]) | Dimension(2**63) | Dimension(1, 2, 3)
    Dimension(Dimension(3))
""")

MEMBERS = table("""
    .is_dynamic | .is_static | .min_length | .max_length | .get_min_length() | .get_max_length()
    .get_length() | .to_string() | .__len__() | .__hash__
""")

OTHERS = table("""
    Dimension() | Dimension(3) | Dimension(4) | Dimension(1, 10) | Dimension(20, -1) | Dimension(2, 5)
""")


@agree([*DIMENSIONS, *BAD_DIMENSIONS, "Dimension(2**63 - 1)"])
def test_dimension_constructors(code: str) -> None:
    check(code)


@agree(DIMENSIONS)
def test_dimension_answers(code: str) -> None:
    for member in MEMBERS:
        check(code + member)
    for other in OTHERS:
        for method in ("compatible", "refines", "relaxes", "same_scheme"):
            check(f"{code}.{method}({other})")
    for other in [*OTHERS, "3", "-1", "'?'", "None", "3.0", "np.int64(3)"]:
        check(f"{code} == {other}")
        check(f"{code} != {other}")
        check(f"{other} == {code}")


@agree(
    table("""
    int(Dimension(3)) | hash(Dimension(3)) | bool(Dimension()) | bool(Dimension(0)) | Dimension(3) < 4
    Dimension(3) + 1 | f'{Dimension(1, 3)}' | Dimension(3) in [3] | [1, 2][Dimension(1)]
    Dimension().compatible(3) | Dimension().same_scheme(3) | Dimension().refines(3) | Dimension().relaxes(3)
""")
)
def test_dimension_expressions(code: str) -> None:
    check(code)


SHAPES = table("""
    PartialShape([]) | PartialShape(()) | PartialShape([1, 2, 3]) | PartialShape((1, 2))
    PartialShape([1, -1]) | PartialShape([1, '?']) | PartialShape([1, '1..10'])
    PartialShape(['..10', (1, 3)]) | PartialShape([[1, 3]]) | PartialShape([Dimension(1, 2)])
    PartialShape('[1,3,?,?]') | PartialShape('1,3') | PartialShape('[1, 3 , 2..5]') | PartialShape('')
    PartialShape('[]') | PartialShape('...') | PartialShape('[...]') | PartialShape('?')
    PartialShape(Shape([1, 2])) | PartialShape(PartialShape([1, -1])) | PartialShape.dynamic()
    PartialShape.dynamic(3) | PartialShape.dynamic(Dimension(2)) | PartialShape.dynamic(Dimension(1, 3))
    PartialShape.dynamic(-1) | PartialShape.dynamic(rank=2) | PartialShape([(-1, 5)])
    PartialShape([(1, -1)]) | PartialShape([True]) | PartialShape(['-1']) | PartialShape([2**40])
    PartialShape(' [1] ') | PartialShape([' 3']) | PartialShape('[-1..3,..,3..]')
    PartialShape([1, -1, (2, 5)]) | PartialShape(shape='[1]')
""")

BAD_SHAPES = table("""
    PartialShape() | PartialShape([(1,)]) | PartialShape([(1, 2, 3)]) | PartialShape([[]])
    PartialShape([None]) | PartialShape([1.0]) | PartialShape([1.5]) | PartialShape(np.array([1, 2]))
    PartialShape('[1,...]') | PartialShape('[1') | PartialShape('1]') | PartialShape('[1,a]')
    PartialShape('[1,]') | PartialShape('[,]') | PartialShape(['...']) | PartialShape([..., 1])
    PartialShape(...) | PartialShape(5) | PartialShape(None) | PartialShape.dynamic('2')
    PartialShape([(None, 5)]) | PartialShape(range(3)) | PartialShape({1: 2}) | PartialShape([('1', '3')])
    PartialShape(['abc']) | PartialShape([(Dimension(1), Dimension(3))]) | PartialShape(iter([1]))
    PartialShape('{1,2}') | PartialShape('(1,2)') | PartialShape('1 2') | PartialShape([[1.5, 2]])
""")

PARTNERS = table("""
    PartialShape([1, 2, 3]) | PartialShape([1, -1, (2, 5)]) | PartialShape.dynamic()
    PartialShape.dynamic(3) | PartialShape([1, 2]) | PartialShape([7, -1, (2, 5)]) | PartialShape([])
""")


@agree(SHAPES + BAD_SHAPES)
def test_partial_shape_constructors(code: str) -> None:
    check(code)


@agree(SHAPES)
def test_partial_shape_answers(code: str) -> None:
    for member in (".rank", ".is_static", ".is_dynamic", ".all_non_negative", ".get_shape()", ".to_shape()",
                   ".get_min_shape()", ".get_max_shape()", ".to_string()", ".__len__()", ".get_dimension(0)",
                   ".get_dimension(5)", "[0]", "[-1]", "[5]", "[0:2]", "[::-1]", "[5:9]", "['a']", "[1.0]",
                   "[Dimension(0)]", "[np.int64(0)]", ".__hash__"):  # fmt: skip
        check(code + member)
    for function in ("len", "list", "tuple", "bool", "hash"):
        check(f"{function}({code})")
    for partner in PARTNERS:
        for method in ("compatible", "refines", "relaxes", "same_scheme"):
            check(f"{code}.{method}({partner})")
    lists = ["[1, 2, 3]", "(1, 2, 3)", "[]"] if evaluate(OURS, code).is_static else []
    for partner in [*PARTNERS, *lists, "Shape([1, 2, 3])", "'[1,2,3]'", "None", "5"]:
        check(f"{code} == {partner}")
        check(f"{code} != {partner}")
        check(f"{partner} == {code}")


@agree([
    *product("p = PartialShape([1, 2, 3]); p[<i>] = 7; p",
             i=table("0 | 2 | 3 | 1.5 | 'a' | slice(0, 1) | None")),
    *product("p = PartialShape([1, 2, 3]); p[1] = <v>; p",
             v=table("-1 | Dimension(1, 5) | np.int64(4) | True | None | 2.0 | 2.5 | PartialShape([1])")),
    *table("""
        p = PartialShape.dynamic(); p[0] = 3; p | p = PartialShape([1, 2]); d = p[0]; p[0] = 4; d
        p = PartialShape([1, 2]); q = copy.copy(p); q[0] = 5; (p, q)
        p = PartialShape([1, 2]); p[0].x = 3; p | p = PartialShape([1, -1]); copy.deepcopy(p)
        1 in PartialShape([1, -1]) | 9 in PartialShape([1, 2]) | PartialShape([1]) + PartialShape([2])
        PartialShape([1, 2]).compatible([1, 2]) | PartialShape([1, 2]).refines(Shape([1, 2]))
        PartialShape([1, 2]).relaxes((1, 2)) | PartialShape([1, 2]).same_scheme([1, 2])
        np.array_equal(PartialShape([1, 2]) == np.array([1, 2]), [True] * 2)
        PartialShape([1, 2]) == [-1, 2] | PartialShape([1, 2]) == ['a']
    """),
])  # fmt: skip
def test_partial_shape_expressions(code: str) -> None:
    check(code)


@agree([
    *table("""
        Shape() | Shape([]) | Shape([1, 2]) | Shape((1, 2)) | Shape(Shape([1, 2])) | Shape('[1,2]')
        Shape('1,2') | Shape('') | Shape('[]') | Shape(np.array([1, 2])) | Shape(range(2)) | Shape([True])
        Shape([2**63]) | Shape([np.int32(4)]) | Shape('[ 1 , 2 ]') | Shape(axis_lengths=[1]) | Shape([-1])
        Shape(['1']) | Shape([1.0]) | Shape(3) | Shape(None) | Shape([Dimension(2)])
        Shape(PartialShape([1, 2])) | Shape([2**64]) | Shape([None]) | hash(Shape([1]))
        np.zeros(Shape([1, 2])) | tuple(Shape([1, 2])) | list(Shape([1, 2])) | int(np.prod(Shape([2, 3])))
        np.array(Shape([2, 3])) | 1 in Shape([1]) | max(Shape([1, 4])) | bool(Shape([]))
        f'{Shape([1, 2])}' | np.reshape(np.arange(2), Shape([1, 2])) | [*Shape([1, 2])]
        p = Shape([1, 2]); p[0:1] = [1]; p | p = Shape([1, 2]); p['a'] = 1; p | Strides([1, 2])
        Strides([1, 2]) == (1, 2) | Strides([4])[0] | Strides([]) | Strides([-1])
    """),
    *product("Shape([1, 2, 3])[<i>]", i=table("0 | -1 | 0:2 | ::-1 | 'a' | 1.0 | np.int64(1) | None")),
    *product("Shape([1, 2, 3])<m>", m=table(".to_string() | .__len__() | .__hash__")),
    *product("Shape([1, 2, 3]) <op> <o>", op=["==", "!="], o=table("""
        Shape([1, 2, 3]) | [1, 2, 3] | (1, 2, 3) | [1, 2] | '[1,2,3]' | None | PartialShape([1, 2, 3])
        PartialShape([1, -1, 3]) | range(1, 4) | ['a'] | [-1] | 5 | np.array([1, 2, 3])
    """)),
    *product("<o> == Shape([1, 2, 3])",
             o=table("[1, 2, 3] | (1, 2, 3) | [1, 2] | None | PartialShape([1, 2, 3])")),
    *product("p = Shape([1, 2, 3]); p[0] = <v>; p",
             v=table("7 | 2.5 | 2.0 | 'a' | Dimension(5) | Dimension(1, 5) | None | np.int64(3)")),
])  # fmt: skip
def test_shape_expressions(code: str) -> None:
    check(code)


STRICTER = {  # openvino invents a number, or reads beyond the shape
    RuntimeError: table("""
        Dimension(-5) | Dimension(-3, 4) | Dimension(5, 2) | Dimension('-2')
        Dimension('3..1') | PartialShape([-5]) | PartialShape([(5, 1)])
        PartialShape([1, 2, 3])[-4] | Shape('[1,?]') | Shape('a') | Shape('[1..2]')
    """),
    TypeError: table("""
        Dimension('99999999999999999999') | p = Shape([1, 2]); p[0] = -1; p | Dimension(np.float32(3))
    """),
    IndexError: table("""
        Shape([1, 2])[-3]
    """),
}


@pytest.mark.parametrize(("code", "error"), [(code, error) for error in STRICTER for code in STRICTER[error]])
def test_stricter_than_openvino(code: str, error: type[Exception]) -> None:
    evaluate(OPENVINO, code)
    with pytest.raises(error):
        evaluate(OURS, code)


WIDER = {  # openvino raises TypeError, or RuntimeError for a comparison
    "PartialShape([np.int64(4)])": PartialShape([4]),
    "PartialShape([1, 2]).get_dimension(-1)": Dimension(2),
    "p = PartialShape([1, 2]); p[-1] = 7; p": PartialShape([1, 7]),
    "p = PartialShape([1, 2]); p[1] = '1..5'; p": PartialShape([1, (1, 5)]),
    "p = PartialShape([1, 2]); p[1] = (1, 5); p": PartialShape([1, (1, 5)]),
    "p = Shape([1, 2]); p[-1] = 7; p": Shape([1, 7]),
    "PartialShape([1, 2]) == ['?', 2]": False,
    "PartialShape([1, -1]) == [1, -1]": True,
    "PartialShape([1, -1]) == (1, 2)": False,
    "PartialShape('...') == [1]": False,
    "Shape([1, 2]) == [1.5, 2]": False,
    "Shape([1, 2]) < Shape([1, 3])": True,
    "copy.copy(Shape([1, 2]))": Shape([1, 2]),
    "copy.deepcopy(Dimension(1, 2))": Dimension(1, 2),
}


@pytest.mark.parametrize("code", WIDER)
def test_accepts_more_than_openvino(code: str) -> None:
    assert outcome(OPENVINO, code) in ("TypeError", "RuntimeError")
    assert evaluate(OURS, code) == WIDER[code]


def test_merge() -> None:
    assert Dimension(1, 5).merge(Dimension(3, 9)) == Dimension(3, 5)
    assert Dimension(3).merge(Dimension(4)) is None
    assert PartialShape([1, -1]).merge(PartialShape([-1, (2, 4)])) == PartialShape([1, (2, 4)])
    assert PartialShape("...").merge(PartialShape([1, -1])) == PartialShape([1, -1])
    for other in ([2], [1, 1], []):
        assert PartialShape([1]).merge(PartialShape(other)) is None


# --- layouts ---

LAYOUTS = table("""
    Layout() | Layout('NCHW') | Layout('nchw') | Layout('[N,C,H,W]') | Layout('[n, c ,H,W]')
    Layout('N...C') | Layout('...') | Layout('NC...') | Layout('...HW') | Layout('N??C') | Layout('?')
    Layout('') | Layout('[batch,channels]') | Layout('[N,...,C]') | Layout('N1') | Layout('[N1,C_2]')
    Layout('**SCALAR**') | Layout.scalar() | Layout('[?,?,C]') | Layout('[CHANNELS,Batch]') | Layout('ABC')
    Layout(layout_str='NC') | Layout(' NCHW') | Layout('NCHW ') | Layout('n...') | Layout('[scalar]')
    Layout('...?') | Layout('N...??') | Layout('[?,...]') | Layout('[channel,height,width,depth]')
    Layout('[Batch_size]') | Layout('[_a]')
""")

LAYOUT_NAMES = table("""
    N | n | B | batch | Batch | C | channel | channels | CHANNELS | H | height | W | width | D | depth
    ? | x | ... | 1 | scalar
""")

LAYOUT_PARTNERS = table("""
    Layout() | Layout('NCHW') | 'NCHW' | 'nchw' | '[N,C,H,W]' | None | 5 | '' | 'bad[' | '...'
""")

BAD_LAYOUTS = table("""
    Layout('[]') | Layout('NN') | Layout('N..C') | Layout('N...C...') | Layout('[N,C') | Layout('N,C')
    Layout('[N,,C]') | Layout('N C') | Layout('_') | Layout('[N C]') | Layout('N.') | Layout('[N,C]x')
    Layout('x[N]') | Layout('[N,N]') | Layout('[dèpth]') | Layout('....') | Layout('[...,...]')
    Layout('[N,..]') | Layout('[??]') | Layout('[ ]') | Layout('scalar') | Layout(3) | Layout(None)
    Layout(Layout('NC')) | Layout('[C,channel]') | Layout('NB') | Layout('[__]')
""")


@agree(LAYOUTS + BAD_LAYOUTS)
def test_layout_constructors(code: str) -> None:
    check(code)


@agree(LAYOUTS)
def test_layout_answers(code: str) -> None:
    for member in (".empty", ".to_string()", ".__hash__"):
        check(code + member)
    for name in ["", *LAYOUT_NAMES]:
        check(f"{code}.has_name('{name}')")
        check(f"{code}.get_index_by_name('{name}')")
    for other in LAYOUT_PARTNERS:
        check(f"{code} == {other}")
        check(f"{code} != {other}")


def test_layout_names() -> None:
    assert Layout("N...C").names(4) == ["N", "?", "?", "C"] and Layout("NCHW").names(4) == list("NCHW")
    assert Layout().names(2) == ["?", "?"] and Layout.scalar().names(0) == []
    for layout, rank in (("NCHW", 3), ("NC", 3), ("N...C", 1)):
        with pytest.raises(RuntimeError, match="rank"):
            Layout(layout).names(rank)
