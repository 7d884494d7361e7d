"""What layouts say of tensors: how one is turned into another. None where a layout says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.types import Dimension, Layout, PartialShape


def named(names: Sequence[str]) -> Layout:
    """The layout of these axes."""
    return Layout(f"[{','.join(names)}]") if names else Layout.scalar()


def is_open(layout: Layout) -> bool:
    """Whether the layout leaves the number of axes open."""
    return "..." in layout.to_string()


def length(layout: Layout) -> int:
    """The number of axes of a layout that is not open."""
    return 0 if layout == Layout.scalar() else layout.to_string().count(",") + 1


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """What the axes mean after a Transpose."""
    if sorted(order) != list(range(len(order))):
        raise RuntimeError(f"{list(order)} is no order of {len(order)} axes")
    if layout.empty:
        return layout
    names = layout.names(len(order))
    return named([names[i] for i in order])


def permutation(source: Layout, rank: int | None, target: Layout) -> list[int] | None:
    """The order of a Transpose from one layout to another, None if there is nothing to do.

    Axes without a name keep their order. Raises: RuntimeError if one layout names an axis that the other lacks.
    """
    if source == target or source.empty or target.empty:
        return None
    have, want = _names(source, rank), _names(target, rank)
    if len(have) != len(want):
        raise RuntimeError(f"layouts {source} and {target} have different numbers of axes")
    if sum(name != "?" for name in have) > sum(name != "?" for name in want):
        order = _order(want, have)
        order = [order.index(i) for i in range(len(order))]
    else:
        order = _order(have, want)
    return None if order == list(range(len(order))) else order


def _order(have: list[str], want: list[str]) -> list[int]:
    missing = [name for name in have if name != "?" and name not in want]
    if missing:
        raise RuntimeError(f"dimension '{missing[0]}' of layout {named(have)} is not found in layout {named(want)}")
    order = [have.index(name) if name != "?" and name in have else -1 for name in want]
    rest = iter([i for i in range(len(have)) if i not in order])
    return [next(rest) if i < 0 else i for i in order]


def _names(layout: Layout, rank: int | None) -> list[str]:
    if rank is None:
        if is_open(layout):
            raise RuntimeError(f"layout {layout} cannot be converted while the rank is dynamic")
        return layout.names(length(layout))
    return layout.names(rank)


def squeezed(model: Layout, shape: PartialShape, tensor: Layout) -> tuple[Layout, PartialShape]:
    """What is left of a model's layout and shape for a tensor that lacks some of its axes: HWC for NCHW."""
    if is_open(model) or is_open(tensor) or length(model) <= length(tensor):
        return model, shape
    for layout in (model, tensor):
        if "?" in layout.names(length(layout)):
            raise RuntimeError(f"conversion between layouts {tensor} and {model} needs names for all axes")
    names, wanted = model.names(length(model)), tensor.names(length(tensor))
    missing = [name for name in wanted if name not in names]
    if missing:
        raise RuntimeError(f"dimension '{missing[0]}' of tensor layout {tensor} is missing in model layout {model}")
    if shape.rank.is_dynamic:
        return named([name for name in names if name in wanted]), shape
    if len(shape) != len(names):
        raise RuntimeError(f"model layout {model} is inconsistent with input shape {shape}")
    kept = [(name, dim) for name, dim in zip(names, shape) if name in wanted]
    return named([name for name, _ in kept]), PartialShape([dim for _, dim in kept])


def unsqueezed(tensor: Layout, model: Layout) -> tuple[Layout, int]:
    """A tensor's layout with the axes that it lacks in front, and how many those are."""
    if is_open(model) or is_open(tensor) or length(model) <= length(tensor):
        return tensor, 0
    names = tensor.names(length(tensor))
    added = [name for name in model.names(length(model)) if name not in names]
    return named([*added, *names]), len(added)


def axis(layout: Layout, name: str, shape: PartialShape) -> int:
    """The number of the axis that a layout calls N, C, H or W."""
    where = layout.get_index_by_name(name)
    if shape.rank.is_dynamic:
        return where
    if not -len(shape) <= where < len(shape):
        raise RuntimeError(f"dimension {name} of layout {layout} is out of range for shape {shape}")
    return where % len(shape)


def transposed(shape: PartialShape, order: Sequence[int]) -> PartialShape:
    """The shape after a Transpose."""
    dims: list[Dimension] = [shape[i] for i in order]
    return PartialShape(dims)
