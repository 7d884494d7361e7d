"""Input tensors from the command line: shapes, files, random numbers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.model import Output
from ovgpu.model.ports import find_port
from ovgpu.types import PartialShape, Type

Array = np.ndarray[Any, Any]
FILLS = ("random", "zeros", "ones")
_SHAPES = re.compile(r"\s*(?P<name>[^\[\],=]*?)\s*=?\s*(?P<shapes>(\[[^\]]*\]\s*)+),?")


def port_name(port: Output) -> str:
    """Return the first tensor name, or the name of the layer that produces the tensor if there is none."""
    source = port.tensor_port
    layer = source.node.friendly_name
    return min(port.get_names(), default=layer if len(source.node.ports) == 1 else f"{layer}.{source.index}")


def port_names(ports: Sequence[Output]) -> list[str]:
    """Return a distinct name for each port."""
    names = [port_name(port) for port in ports]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


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


def _follow_input_ids(by_input: dict[int, list[PartialShape]],
                      ports: Sequence[Output]) -> dict[int, list[PartialShape]]:
    named = {port_name(port): number for number, port in enumerate(ports)}
    ids = by_input.get(named.get("input_ids", -1), [])
    if ids and all(len(shape) == 2 for shape in ids):
        for name, number in named.items():
            if name in ("attention_mask", "position_ids", "token_type_ids"):
                by_input.setdefault(number, ids)
            elif name == "beam_idx":
                by_input.setdefault(number, [PartialShape([shape[0]]) for shape in ids])
    return by_input


def input_index(ports: Sequence[Output], name: str) -> int:
    """Return the index of an input given by tensor name, layer name or index. Raises RuntimeError if unknown."""
    for number, port in enumerate(ports):
        if name in (port.node.friendly_name, str(number)) or name in port.get_names():
            return number
    return ports.index(find_port(ports, name, "input"))


def parse_values(texts: Sequence[str], ports: Sequence[Output]) -> dict[int, str]:
    """Return the values by input index, from ``name=value``, or ``value`` for the only input."""
    by_input = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator and len(ports) != 1:
            raise ValueError(f"--input {text}: the model has {len(ports)} inputs, so write name={text}")
        by_input[input_index(ports, name) if separator else 0] = value if separator else text
    return by_input


def static_shape(port: Output, shape: PartialShape | None, option: str) -> tuple[int, ...]:
    """Return the shape of an input. Raises ValueError if it is dynamic (naming ``option``) or does not fit the port."""
    declared = port.partial_shape
    if shape is not None and not declared.compatible(shape):
        raise ValueError(f"input '{port_name(port)}' has shape {declared}, not {shape}")
    chosen = declared if shape is None else shape
    if chosen.is_dynamic:
        example = ",".join("1" if d.is_dynamic else str(d) for d in chosen) if chosen.rank.is_static else "1,..."
        raise ValueError(f"input '{port_name(port)}' has the dynamic shape {chosen}: give it with {option} "
                         f"{port_name(port)}=[{example}]")
    return tuple(chosen.to_shape())


def fill(port: Output, shape: tuple[int, ...], content: str | None, random: np.random.Generator) -> Array:
    """Return an input tensor: values of a kind in `FILLS`, or the contents of a .npy file.

    By default, reals are random in [-1, 1), integers 0 (a valid index in any case), masks 1.
    """
    kind = port.element_type
    storage = np.dtype(np.float32) if kind.is_dynamic() else kind.storage
    if content is not None and content not in FILLS:
        array: Array = np.load(Path(content), allow_pickle=False)
        return array
    if kind == Type.string:
        return np.full(shape, "", object)
    if content is None:
        content = "random" if kind.is_real() or kind.is_dynamic() else "ones" if "mask" in port_name(port) else "zeros"
    if content != "random":
        return np.full(shape, float(content == "ones")).astype(storage)
    if storage == np.bool_:
        return random.integers(0, 2, shape).astype(storage)
    if kind.is_integral():
        return random.integers(0, min(255, 2 ** (kind.bitwidth - 1) - 1), shape, endpoint=True).astype(storage)
    return random.uniform(-1, 1, shape).astype(np.float32).astype(storage)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `build_feed` reads, and the number of inferences."""
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE",
                        help="a .npy file, random, zeros or ones; by default reals are random, integers 0, masks 1")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=[1,3]", help="shapes of dynamic inputs")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="inferences; state carries over (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")


def build_feed(args: argparse.Namespace, ports: Sequence[Output], stateful: bool) -> Feed:
    """Return the inputs that the command line requests. Raises ValueError if ``--steps`` is less than 1."""
    if args.steps < 1:
        raise ValueError(f"--steps must be at least 1, not {args.steps}")
    shapes, values = parse_shapes(args.shape, ports), parse_values(args.input, ports)
    random = np.random.default_rng(args.seed)
    arrays = {}
    for number, port in enumerate(ports):
        content = values.get(number)
        from_file = content is not None and content.endswith(".npy")
        shape = () if from_file else static_shape(port, shapes.get(number, [None])[0], "--shape")
        arrays[number] = fill(port, shape, content, random)
    return Feed(ports, arrays, stateful)


class Feed:
    """Inputs of successive inferences: the same arrays each time.

    For a stateful language model with ``attention_mask`` (and ``position_ids``), each inference continues the
    sequence: the mask also covers earlier tokens, and the positions count on. A sequence begins with ``prompt``
    tokens if that is not 0. Raises: ValueError if there is a prompt, but the model does not continue sequences.
    """

    def __init__(self, ports: Sequence[Output], arrays: Mapping[int, Array], stateful: bool, prompt: int = 0) -> None:
        self.arrays = dict(arrays)
        named = {port_name(port): number for number, port in enumerate(ports)}
        self.ids = named.get("input_ids")
        self.mask, self.positions = named.get("attention_mask"), named.get("position_ids")
        continues = (stateful and self.ids is not None and self.mask is not None
                     and arrays[self.mask].ndim == 2 and ports[self.mask].partial_shape[1].is_dynamic)
        self.length = self.arrays[self.ids].shape[-1] if continues and self.ids is not None else 0
        self.past, self.prompt = 0, prompt
        if prompt and not self.length:
            raise ValueError("--prompt is for models with state, and inputs input_ids and attention_mask")

    @property
    def tokens(self) -> int:
        """The number of tokens of one inference; 0 unless the model is a language model."""
        return self.arrays[self.ids].size if self.ids is not None else 0

    def next(self) -> dict[int, Array]:
        """Return the arrays of the next inference by input index."""
        arrays = dict(self.arrays)
        if self.length and self.mask is not None and self.ids is not None:
            length = self.length if self.past else self.prompt or self.length
            mask, ids = arrays[self.mask], arrays[self.ids]
            arrays[self.mask] = np.ones((mask.shape[0], self.past + length), mask.dtype)
            arrays[self.ids] = ids if length == self.length else np.resize(ids, (len(ids), length))
            if self.positions is not None:
                positions = arrays[self.positions]
                arrays[self.positions] = (np.broadcast_to(np.arange(length), (*positions.shape[:-1], length))
                                          + self.past).astype(positions.dtype)
            self.past += length
        return arrays

    def restart(self) -> None:
        """Begin a new sequence."""
        self.past = 0
