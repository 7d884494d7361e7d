"""Operations on layouts: conversions between them, and the shapes that result."""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.types import Dimension, Layout, PartialShape


def named(names: Sequence[str]) -> Layout:
    """Return the layout with these names of axes, the scalar layout for none."""
    return Layout(f"[{','.join(names)}]") if names else Layout.scalar()


def is_open(layout: Layout) -> bool:
    """Return whether the layout has "...", so that its number of axes is open."""
    return "..." in layout.to_string()


def length(layout: Layout) -> int:
    """Return the number of axes of a layout that is not open."""
    return 0 if layout == Layout.scalar() else layout.to_string().count(",") + 1


def permuted(layout: Layout, order: Sequence[int]) -> Layout:
    """Return the layout after a Transpose. RuntimeError if ``order`` is no permutation."""
    if sorted(order) != list(range(len(order))):
        raise RuntimeError(f"{list(order)} is no order of {len(order)} axes")
    if layout.empty:
        return layout
    names = layout.names(len(order))
    return named([names[i] for i in order])


def permutation(source: Layout, rank: int | None, target: Layout) -> list[int] | None:
    """Return the order of a Transpose from one layout to another, None if there is nothing to do.

    Unnamed axes keep their order. Raises: RuntimeError if one layout names an axis that the other lacks.
    """
    if source == target or source.empty or target.empty:
        return None
    source_names, target_names = _names(source, rank), _names(target, rank)
    if len(source_names) != len(target_names):
        raise RuntimeError(f"layouts {source} and {target} have different numbers of axes")
    if sum(name != "?" for name in source_names) > sum(name != "?" for name in target_names):
        order = _order(target_names, source_names)
        order = [order.index(i) for i in range(len(order))]
    else:
        order = _order(source_names, target_names)
    return None if order == list(range(len(order))) else order


def _order(source_names: list[str], target_names: list[str]) -> list[int]:
    missing = [name for name in source_names if name != "?" and name not in target_names]
    if missing:
        raise RuntimeError(
            f"dimension '{missing[0]}' of layout {named(source_names)} is not found in layout {named(target_names)}"
        )
    order = [source_names.index(name) if name != "?" and name in source_names else -1 for name in target_names]
    rest = iter([i for i in range(len(source_names)) if i not in order])
    return [next(rest) if i < 0 else i for i in order]


def _names(layout: Layout, rank: int | None) -> list[str]:
    if rank is None:
        if is_open(layout):
            raise RuntimeError(f"layout {layout} cannot be converted while the rank is dynamic")
        return layout.names(length(layout))
    return layout.names(rank)


def squeezed(model: Layout, shape: PartialShape, tensor: Layout) -> tuple[Layout, PartialShape]:
    """Remove the axes from a model's layout and shape that a tensor's layout lacks: NCHW becomes CHW for HWC.

    Raises: RuntimeError if an axis is unnamed, or the tensor has one that the model lacks.
    """
    if is_open(model) or is_open(tensor) or length(model) <= length(tensor):
        return model, shape
    for layout in (model, tensor):
        if "?" in layout.names(length(layout)):
            raise RuntimeError(f"conversion between layouts {tensor} and {model} needs names for all axes")
    names, tensor_names = model.names(length(model)), tensor.names(length(tensor))
    missing = [name for name in tensor_names if name not in names]
    if missing:
        raise RuntimeError(f"dimension '{missing[0]}' of tensor layout {tensor} is missing in model layout {model}")
    if shape.rank.is_dynamic:
        return named([name for name in names if name in tensor_names]), shape
    if len(shape) != len(names):
        raise RuntimeError(f"model layout {model} is inconsistent with input shape {shape}")
    retained = [(name, dim) for name, dim in zip(names, shape) if name in tensor_names]
    return named([name for name, _ in retained]), PartialShape([dim for _, dim in retained])


def unsqueezed(tensor: Layout, model: Layout) -> tuple[Layout, int]:
    """Prepend the model's axes that a tensor's layout lacks. Return the new layout and the number of added axes."""
    if is_open(model) or is_open(tensor) or length(model) <= length(tensor):
        return tensor, 0
    names = tensor.names(length(tensor))
    added = [name for name in model.names(length(model)) if name not in names]
    return named([*added, *names]), len(added)


def axis(layout: Layout, name: str, shape: PartialShape) -> int:
    """Return the axis called ``name`` in a layout: N, C, H or W. It may be negative if the rank is dynamic."""
    position = layout.get_index_by_name(name)
    if shape.rank.is_dynamic:
        return position
    if not -len(shape) <= position < len(shape):
        raise RuntimeError(f"dimension {name} of layout {layout} is out of range for shape {shape}")
    return position % len(shape)


def transposed(shape: PartialShape, order: Sequence[int]) -> PartialShape:
    """Return the shape after a Transpose."""
    dims: list[Dimension] = [shape[i] for i in order]
    return PartialShape(dims)
