"""MatMul of numbers computed from integers alone, such as positions and angles -> ExactMatMul, which is never in TF32.

TF32 has 11 significant bits, in which position 4097 would be rounded to 4096. Pixels of 8 bits do not count as such
integers, since TF32 holds them, and neither do rows that are looked up in a constant table.
"""

from __future__ import annotations

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import ExactMatMul, MatMul


def keep_products_exact(model: Model) -> None:
    """Rewrite the model, and the bodies of its layers, in place. Port specs must be inferred beforehand."""
    integral: set[Output] = set()
    for node in model.ops:
        op = node.op
        if _is_integral(node, integral):
            integral.update(port for port in node.ports if port.spec.type.is_real())
            if type(op) is MatMul:
                node.op = ExactMatMul(transpose_a=op.transpose_a, transpose_b=op.transpose_b)
        for body in bodies(op):
            keep_products_exact(body)


def _is_integral(node: Node, integral: set[Output]) -> bool:
    """Return whether the floats that a layer takes or makes are computed from integers and constants alone.

    ``integral``: ports of earlier layers for which this holds.
    """
    inputs = [s for s in node.sources if s is not None and not isinstance(s.node.op, Constant)]
    floats = [s for s in inputs if s.spec.type.is_real()]
    if floats:
        return all(s in integral for s in floats)
    if isinstance(node.op, Convert):
        return any(s.spec.type.is_integral_number() and s.spec.type.bitwidth > 8 for s in inputs)
    return node.op.name == "Range"
