"""Input tensors from the command line: random numbers, values, and files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.cli._feed import Feed, token_input
from ovgpu.cli._images import SUFFIXES, image_tensor, parse_numbers
from ovgpu.cli._ports import input_index, model_folder, parse_shapes, port_name, static_shapes
from ovgpu.cli._preparation import Preparation, preparation
from ovgpu.model import Model, Output
from ovgpu.ops.base.storage import encode
from ovgpu.types import PartialShape, Type

Array = np.ndarray[Any, Any]
CONSTANTS = {"zeros": 0, "ones": 1, "false": 0, "true": 1}
FILLS = ("random", *CONSTANTS)
IMAGE_OPTIONS = ("mean_values", "scale_values", "bgr")
TAKES = "a .npy or .bin file, an image, a number or [list], random, zeros or ones"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `build_feed` reads, and the number of inferences."""
    add = parser.add_argument
    add(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"{TAKES}; by default reals are random, integers 0, masks 1",
    )
    add(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=[1,3]",
        help="shapes of dynamic inputs; by default, a language model with state gets one token at a time",
    )
    add("--steps", type=int, default=1, metavar="N", help="inferences; state carries over (default 1)")
    add("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    images = parser.add_argument_group(
        "images",
        "The model gets (pixel - mean) / scale of RGB pixels from 0 to 255. "
        "What is not given comes from the model's runtime information (model_info), or "
        "from preprocessor_config.json beside the model.",
    )
    images.add_argument("--mean_values", default="", metavar="[R,G,B]", help="mean per channel (default 0)")
    images.add_argument("--scale_values", default="", metavar="[R,G,B]", help="divisor per channel (default 1)")
    images.add_argument("--bgr", action="store_true", help="the model takes BGR")


def build_feed(args: argparse.Namespace, model: Model, stateful: bool) -> Feed:
    """Return the inputs that the command line requests. ``args.notes`` gets a line per image that says what was done.

    Raises: ValueError for numbers of steps and seeds that are too low, for values that cannot be read, and for shapes
    that are not known.
    """
    if args.steps < 1:
        raise ValueError(f"--steps must be at least 1, not {args.steps}")
    if args.seed < 0:
        raise ValueError(f"--seed must not be negative, not {args.seed}")
    ports = model.inputs
    shapes, values = parse_shapes(args.shape, ports), parse_values(args.input, ports)
    for index, several in shapes.items():
        if len(several) > 1:
            raise ValueError(f"--shape gives input '{port_name(ports[index])}' {len(several)} shapes, and it takes one")
    random = np.random.default_rng(args.seed)
    args.notes = []
    arrays = {
        index: _given(port, values[index], shapes.get(index, [None])[0], args, model)
        for index, port in enumerate(ports)
        if not _is_fill(values.get(index, "random"))
    }
    for index, array in arrays.items():
        for shape in shapes.get(index, ())[:1]:
            if not shape.compatible(PartialShape(array.shape)):
                raise ValueError(
                    f"--shape {port_name(ports[index])}={shape}: its --input has shape {list(array.shape)}"
                )
    if not args.notes and (options := [f"--{name}" for name in IMAGE_OPTIONS if getattr(args, name)]):
        args.notes.append(f"no input is an image, so {' and '.join(options)} has no effect")
    given = {**shapes, **{index: [PartialShape(array.shape)] for index, array in arrays.items()}}
    filled = static_shapes(ports, given, "--shape", is_decoder(ports, stateful))
    for index, port in enumerate(ports):
        if index not in arrays:
            arrays[index] = fill(port, filled[index], values.get(index), random)
    return Feed(ports, arrays, stateful)


def is_decoder(ports: Sequence[Output], stateful: bool) -> bool:
    """Return whether a model is a language model that keeps a state, which gets one token at a time by default."""
    return stateful and token_input(ports) is not None


def parse_values(texts: Sequence[str], ports: Sequence[Output]) -> dict[int, str]:
    """Return the values by input index, from ``name=value``, or ``value`` for the only input."""
    by_input = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator and len(ports) != 1:
            raise ValueError(f"--input {text}: the model has {len(ports)} inputs, so write name={text}")
        by_input[input_index(ports, name) if separator else 0] = value if separator else text
    return by_input


def fill(port: Output, shape: tuple[int, ...], content: str | None, random: np.random.Generator) -> Array:
    """Return an input tensor filled by ``content``: a name in `FILLS`, or a number.

    By default, reals are random in [-1, 1), integers 0 (a valid index in any case), masks 1.
    """
    dtype, storage = port.element_type, _storage(port)
    if dtype == Type.string:
        return np.full(shape, "", object)
    if content is None:
        content = (
            "random" if dtype.is_real() or dtype.is_dynamic() else "ones" if "mask" in port_name(port) else "zeros"
        )
    if content != "random":
        return np.full(shape, _converted(CONSTANTS.get(content, content), port), storage)
    if storage == np.bool_:
        return random.integers(0, 2, shape).astype(storage)
    if dtype.is_integral():
        return random.integers(0, min(255, 2 ** (dtype.bitwidth - 1) - 1), shape, endpoint=True).astype(storage)
    return random.uniform(-1, 1, shape).astype(np.float32).astype(storage)


def read_array(path: Path, port: Output, shape: tuple[int, ...]) -> Array:
    """Return the contents of a .npy file, or of a .bin file as a tensor of this shape and the type of the input."""
    storage = _storage(port)
    if path.suffix == ".npy":
        try:
            array: Array = np.load(path, allow_pickle=False)
        except (EOFError, ValueError) as e:
            raise ValueError(f"{path} is no .npy file of an array: {e}") from None
        if array.dtype.kind == "V" and array.dtype.itemsize == storage.itemsize:
            return array.view(storage)  # NumPy saves types that it lacks as raw bytes
        if port.element_type == Type.bf16 and array.dtype == np.float16:  # a tensor would take it for the bits of bf16
            return array.astype(np.float32).astype(storage)
        return array
    expected, actual = int(np.prod(shape)) * storage.itemsize, path.stat().st_size
    if expected != actual:
        raise ValueError(
            f"{path} has {actual} bytes, but input '{port_name(port)}' of shape {list(shape)} and type "
            f"{port.element_type.get_type_name()} takes {expected}"
        )
    return np.fromfile(path, storage).reshape(shape)


def _given(port: Output, text: str, shape: PartialShape | None, args: argparse.Namespace, model: Model) -> Array:
    """Return the tensor that ``--input`` describes: the contents of a file, text, or a list of numbers."""
    path = Path(text)
    if port.element_type == Type.string and path.suffix != ".npy":
        return np.full(tuple(1 if d.is_dynamic else d.get_length() for d in port.partial_shape), text, object)
    if path.suffix == ".npy":
        return read_array(path, port, ())
    if path.suffix == ".bin":
        return read_array(path, port, static_shapes([port], {0: [shape]} if shape else {}, "--shape", False)[0])
    if path.suffix.lower() in SUFFIXES:
        chosen = _preparation(args, model, port)
        array, note = image_tensor([path], port, shape or port.partial_shape, chosen)
        args.notes.append(note)
        return array
    try:
        values = json.loads(text)
    except ValueError:
        raise ValueError(f"--input {port_name(port)}={text}: it takes {TAKES}") from None
    return _converted(values, port)


def _converted(values: Any, port: Output) -> Array:
    """Convert a number, its text, or nested lists of numbers to the type of an input.

    Raises: ValueError for anything else, and for numbers that an integer type cannot hold.
    """
    dtype, given = port.element_type, f"--input {port_name(port)}={values}"
    if isinstance(values, str):
        values = int(values) if values.lstrip("+-").isdecimal() else float(values)
    numbers = np.array(values, object)  # an array of u64 and i64 would be of f64
    if not all(isinstance(number, (int, float)) for number in numbers.flat):
        raise ValueError(f"{given}: it takes {TAKES}")
    numeric: type[np.number[Any]] = np.float64
    if dtype.is_integral() and dtype not in (Type.boolean, Type.nf4):
        low = -(2 ** (dtype.bitwidth - 1)) if dtype.is_signed() else 0
        high = low + 2**dtype.bitwidth - 1
        if not all(low <= number <= high and number == int(number) for number in numbers.flat):
            raise ValueError(f"{given}: an input of type {dtype.get_type_name()} takes integers from {low} to {high}")
        numeric = np.int64 if low else np.uint64
    stored: Array = encode(numbers.ravel().astype(numeric), Type.f32 if dtype.is_dynamic() else dtype)
    return stored.reshape(numbers.shape)


def _is_fill(text: str) -> bool:
    """Return whether a value describes a tensor of any shape: a name in `FILLS`, or a number."""
    if text in FILLS:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _preparation(args: argparse.Namespace, model: Model, port: Output) -> Preparation:
    """Return the preparation of images that the options describe, or the model, or the files beside it."""
    base = preparation(model, model_folder(args.model))
    options: dict[str, Any] = {"bgr": True} if args.bgr else {}
    for name in ("mean", "scale"):
        numbers: Mapping[str, tuple[float, ...]] = parse_numbers(getattr(args, f"{name}_values"))
        if numbers:
            options[name] = numbers.get(port_name(port), numbers.get(port.node.friendly_name, numbers.get("", ())))
    return base.replaced(options)


def _storage(port: Output) -> np.dtype[Any]:
    return np.dtype(np.float32) if port.element_type.is_dynamic() else port.element_type.storage
