"""A model on the command line: its folder, and the names and shapes of its inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ovgpu.model import Output
from ovgpu.model.ports import find_port, port_name, port_names
from ovgpu.types import PartialShape

__all__ = [
    "example_shape",
    "input_index",
    "model_folder",
    "parse_shapes",
    "port_name",
    "port_names",
    "static_shape",
]

_SHAPES = re.compile(r"\s*(?P<name>[^\[\],=]*?)\s*=?\s*(?P<shapes>(\[[^\]]*\]\s*)+),?")

IMAGE_SIZE = 224  # height and width of most classifiers' images


def model_folder(model: str) -> Path:
    """Return the folder of a model, which is given by its path or by the folder itself."""
    path = Path(model)
    return path if path.is_dir() else path.parent


def input_index(ports: Sequence[Output], name: str) -> int:
    """Return the index of an input given by tensor name, layer name or index. Raises RuntimeError if unknown."""
    for index, port in enumerate(ports):
        if name in (port.node.friendly_name, str(index)) or name in port.get_names():
            return index
    return ports.index(find_port(ports, name, "input"))


def parse_shapes(texts: Sequence[str], ports: Sequence[Output]) -> dict[int, list[PartialShape]]:
    """Return shapes by input index, from ``[1,3]``, ``name=[1,3]`` or ``a[1,3],b[?,4]``.

    An input may have several shapes, as in ``a[1,3][1,5]``. A shape without a name is for the unnamed inputs that
    it fits, or for all of them if it fits none. A language model's other inputs follow ``input_ids``.
    Raises: ValueError for text that cannot be parsed, RuntimeError for an unknown name.
    """
    by_input: dict[int, list[PartialShape]] = {}
    unnamed: list[PartialShape] = []
    for text in texts:
        position = 0
        while position < len(text):
            match = _SHAPES.match(text, position)
            if match is None:
                raise ValueError(f"cannot read the shape {text!r}: write [1,3] or name=[1,3]")
            position = match.end()
            shapes = [PartialShape(part) for part in re.findall(r"\[[^\]]*\]", match["shapes"])]
            if match["name"]:
                by_input[input_index(ports, match["name"])] = shapes
            else:
                unnamed = shapes
    if unnamed:
        fitting = [i for i, port in enumerate(ports) if all(map(port.partial_shape.compatible, unnamed))]
        by_input = {i: unnamed for i in fitting or range(len(ports))} | by_input
    return _follow_input_ids(by_input, ports)


def _follow_input_ids(
    by_input: dict[int, list[PartialShape]], ports: Sequence[Output]
) -> dict[int, list[PartialShape]]:
    named = {port_name(port): index for index, port in enumerate(ports)}
    ids = by_input.get(named.get("input_ids", -1), [])
    if ids and all(len(shape) == 2 for shape in ids):
        for name, index in named.items():
            if name in ("attention_mask", "position_ids", "token_type_ids"):
                by_input.setdefault(index, ids)
            elif name == "beam_idx":
                by_input.setdefault(index, [PartialShape([shape[0]]) for shape in ids])
    return by_input


def static_shape(port: Output, shape: PartialShape | None, option: str) -> tuple[int, ...]:
    """Return the shape of an input. Raises ValueError if it is dynamic (naming ``option``) or does not fit the port."""
    declared = port.partial_shape
    if shape is not None and not declared.compatible(shape):
        raise ValueError(f"input '{port_name(port)}' has shape {declared}, not {shape}")
    chosen = declared if shape is None else shape
    if chosen.is_dynamic:
        raise ValueError(
            f"input '{port_name(port)}' has the dynamic shape {chosen}: give it with {option} "
            f"{port_name(port)}={example_shape(chosen)}"
        )
    return tuple(chosen.to_shape())


def example_shape(shape: PartialShape) -> str:
    """Return a shape for an input that is likely to work: images of 224 x 224, and 1 for all else that is dynamic."""
    if shape.rank.is_dynamic:
        return "[1]"
    sizes = [d.get_min_length() if d.is_dynamic else d.get_length() for d in shape]
    channels = next((axis for axis in (1, 3) if len(shape) == 4 and shape[axis].is_static and sizes[axis] in (1, 3)), 0)
    spatial = {1: (2, 3), 3: (1, 2)}.get(channels, ())
    extents = []
    for axis, (dim, size) in enumerate(zip(shape, sizes)):
        wanted = IMAGE_SIZE if axis in spatial and dim.is_dynamic else 1
        limit = dim.get_max_length()
        extents.append(size if dim.is_static else max(size, wanted if limit < 0 else min(wanted, limit)))
    return f"[{','.join(map(str, extents))}]"


def one_token(port: Output) -> PartialShape:
    """Return the shape of a decoder's input for one token of one sequence: 1 for each dynamic dimension."""
    declared = port.partial_shape
    return declared if declared.rank.is_dynamic else PartialShape([1 if d.is_dynamic else d for d in declared])


def static_shapes(
    ports: Sequence[Output], given: Mapping[int, Sequence[PartialShape]], option: str, decodes: bool
) -> list[tuple[int, ...]]:
    """Return the shapes of all inputs: the first one given, else the declared one.

    For a model that ``decodes`` (a language model with state), dynamic inputs without a given shape are for one token.
    Raises: ValueError as `static_shape`.
    """
    return [
        static_shape(port, given[i][0] if i in given else one_token(port) if decodes else None, option)
        for i, port in enumerate(ports)
    ]
