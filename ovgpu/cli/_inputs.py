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
    """The first tensor name, or the name of the layer that makes the tensor where there is none."""
    source = port.tensor_port
    layer = source.node.friendly_name
    return min(port.get_names(), default=layer if len(source.node.outputs) == 1 else f"{layer}.{source.index}")


def port_names(ports: Sequence[Output]) -> list[str]:
    """A name for each port, no two alike."""
    names = [port_name(port) for port in ports]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def parse_shapes(texts: Sequence[str], ports: Sequence[Output]) -> dict[int, list[PartialShape]]:
    """Shapes by number of the input, from ``[1,3]``, ``name=[1,3]`` or ``a[1,3],b[?,4]``.

    Several shapes in a row, as in ``a[1,3][1,5]``, are all kept. A shape without a name is for the inputs that
    it fits and no name is given for. A language model's other inputs follow ``input_ids``.
    ValueError for what cannot be read, RuntimeError for an unknown name.
    """
    found: dict[int, list[PartialShape]] = {}
    others: list[PartialShape] = []
    for text in texts:
        position = 0
        while position < len(text):
            match = _SHAPES.match(text, position)
            if match is None:
                raise ValueError(f"cannot read the shape {text!r}: write [1,3] or name=[1,3]")
            position = match.end()
            shapes = [PartialShape(part) for part in re.findall(r"\[[^\]]*\]", match["shapes"])]
            if match["name"]:
                found[number_of(ports, match["name"])] = shapes
            else:
                others = shapes
    if others:
        fitting = [i for i, port in enumerate(ports) if all(map(port.partial_shape.compatible, others))]
        found = {i: others for i in fitting or range(len(ports))} | found
    return _like_input_ids(found, ports)


def _like_input_ids(found: dict[int, list[PartialShape]], ports: Sequence[Output]) -> dict[int, list[PartialShape]]:
    named = {port_name(port): number for number, port in enumerate(ports)}
    ids = found.get(named.get("input_ids", -1), [])
    if ids and all(len(shape) == 2 for shape in ids):
        for name, number in named.items():
            if name in ("attention_mask", "position_ids", "token_type_ids"):
                found.setdefault(number, ids)
            elif name == "beam_idx":
                found.setdefault(number, [PartialShape([shape[0]]) for shape in ids])
    return found


def number_of(ports: Sequence[Output], name: str) -> int:
    """The number of an input by tensor name, by its layer's name, or by number."""
    for number, port in enumerate(ports):
        if name in (port.node.friendly_name, str(number)) or name in port.get_names():
            return number
    return ports.index(find_port(ports, name, "input"))


def parse_values(texts: Sequence[str], ports: Sequence[Output]) -> dict[int, str]:
    """What each input is filled with, from ``name=value``, or ``value`` for the only input."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator and len(ports) != 1:
            raise ValueError(f"--input {text}: the model has {len(ports)} inputs, so write name={text}")
        found[number_of(ports, name) if separator else 0] = value if separator else text
    return found


def static_shape(port: Output, shape: PartialShape | None, option: str) -> tuple[int, ...]:
    """The shape of an input; ValueError naming the option that gives it if it is dynamic."""
    declared = port.partial_shape
    if shape is not None and not declared.compatible(shape):
        raise ValueError(f"input '{port_name(port)}' has shape {declared}, not {shape}")
    chosen = declared if shape is None else shape
    if chosen.is_dynamic:
        example = ",".join("1" if d.is_dynamic else str(d) for d in chosen) if chosen.rank.is_static else "1,..."
        raise ValueError(f"input '{port_name(port)}' has the dynamic shape {chosen}: give it with {option} "
                         f"{port_name(port)}=[{example}]")
    return tuple(chosen.to_shape())


def fill(port: Output, shape: tuple[int, ...], how: str | None, random: np.random.Generator) -> Array:
    """An input tensor: numbers of a kind in `FILLS`, or of a .npy file.

    By default, reals are random in [-1, 1), integers 0 (a valid index whatever it is for), masks 1.
    """
    kind = port.element_type
    storage = np.dtype(np.float32) if kind.is_dynamic() else kind.storage
    if how is not None and how not in FILLS:
        array: Array = np.load(Path(how), allow_pickle=False)
        return array
    if kind == Type.string:
        return np.full(shape, "", object)
    if how is None:
        how = "random" if kind.is_real() or kind.is_dynamic() else "ones" if "mask" in port_name(port) else "zeros"
    if how != "random":
        return np.full(shape, float(how == "ones")).astype(storage)
    if storage == np.bool_:
        return random.integers(0, 2, shape).astype(storage)
    if kind.is_integral():
        return random.integers(0, min(255, 2 ** (kind.bitwidth - 1) - 1), shape, endpoint=True).astype(storage)
    return random.uniform(-1, 1, shape).astype(np.float32).astype(storage)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `feed_of` reads, and how many inferences there are."""
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE",
                        help="a .npy file, random, zeros or ones; by default reals are random, integers 0, masks 1")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=[1,3]", help="shapes of dynamic inputs")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="inferences; the state is kept (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")


def feed_of(args: argparse.Namespace, ports: Sequence[Output], stateful: bool) -> Feed:
    """The inputs that the command line asks for. ValueError if it asks for no inference."""
    if args.steps < 1:
        raise ValueError(f"--steps must be at least 1, not {args.steps}")
    shapes, given = parse_shapes(args.shape, ports), parse_values(args.input, ports)
    random = np.random.default_rng(args.seed)
    arrays = {}
    for number, port in enumerate(ports):
        how = given.get(number)
        from_file = how is not None and how.endswith(".npy")
        shape = () if from_file else static_shape(port, shapes.get(number, [None])[0], "--shape")
        arrays[number] = fill(port, shape, how, random)
    return Feed(ports, arrays, stateful)


class Feed:
    """The inputs of successive inferences: the same arrays each time.

    For a stateful language model with ``attention_mask`` (and ``position_ids``), each inference is further in
    the sequence: the mask covers what came before, and the positions go on. A sequence begins with ``prompt`` tokens,
    if that is not 0. ValueError if the model does not continue sequences.
    """

    def __init__(self, ports: Sequence[Output], arrays: Mapping[int, Array], stateful: bool, prompt: int = 0) -> None:
        self.arrays = dict(arrays)
        named = {port_name(port): number for number, port in enumerate(ports)}
        self.ids = named.get("input_ids")
        self.mask, self.positions = named.get("attention_mask"), named.get("position_ids")
        grows = (stateful and self.ids is not None and self.mask is not None
                 and arrays[self.mask].ndim == 2 and ports[self.mask].partial_shape[1].is_dynamic)
        self.length = self.arrays[self.ids].shape[-1] if grows and self.ids is not None else 0
        self.past, self.prompt = 0, prompt
        if prompt and not self.length:
            raise ValueError("--prompt is for models with state, and inputs input_ids and attention_mask")

    @property
    def tokens(self) -> int:
        """The number of tokens of one inference, 0 for other models than language models."""
        return self.arrays[self.ids].size if self.ids is not None else 0

    def next(self) -> dict[int, Array]:
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
        """Begins a new sequence."""
        self.past = 0
