"""The first pass: errors for models that cannot be compiled."""

from __future__ import annotations

from ovgpu.errors import OpError
from ovgpu.ir import check_files
from ovgpu.model import Model, bodies
from ovgpu.ops.base.unsupported import require_supported

MAX_AXES = 64  # largest rank of an array in NumPy and CuPy


def verify(model: Model) -> None:
    """Raise for an unsupported operation, a file of constants that has changed, or a tensor with too many axes.

    Raises: UnsupportedOpError that names all such operations, ModelError, OpError.
    """
    require_supported(model)
    check_files(model)
    _check_ranks(model)


def _check_ranks(model: Model) -> None:
    for node in (*model.parameters, *model.ops):
        for port in node.ports:
            rank = port.spec.rank
            if rank is not None and rank > MAX_AXES:
                error = OpError(f"a tensor has at most {MAX_AXES} axes, not {rank}")
                raise error.at(node.op.name, node.source_location)
        for body in bodies(node.op):
            _check_ranks(body)
