"""Inputs of a benchmark: layouts, shapes, batch, preprocessing, and tensors from files or random numbers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.cli._images import SUFFIXES, image_layout, image_tensor, parse_numbers
from ovgpu.cli._inputs import fill, read_array
from ovgpu.cli._ports import example_shape, one_token, parse_shapes, port_name
from ovgpu.cli._preparation import Preparation
from ovgpu.cli.benchmark.flags import TYPES
from ovgpu.model import Model, Output
from ovgpu.preprocess import PrePostProcessor
from ovgpu.types import Dimension, Layout, PartialShape, Type

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Warn = Callable[[str], None]


@dataclass
class Input:
    """An input of the model: its port, its layout (letters, or ""), its shape, and the shapes of its data."""

    port: Output
    axes: str
    shape: PartialShape
    data_shapes: list[Shape] = field(default_factory=list)
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return port_name(self.port)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the command line may use."""
        return (self.name, *sorted(self.port.get_names()), self.port.node.friendly_name)

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the data; none if files determine them."""
        return self.data_shapes if self.shape.is_dynamic else [tuple(self.shape.to_shape())]

    @property
    def is_image(self) -> bool:
        return self.axes in ("NCHW", "NHWC", "CHW", "HWC") and self.shape[self.axes.index("C")] == 3

    @property
    def is_image_info(self) -> bool:
        """True if the input takes the height and width of the image, as in Faster R-CNN."""
        return self.axes == "NC" and self.shape[1].get_max_length() >= 2

    def batch(self, shape: PartialShape | Shape) -> Any:
        """Return the batch dimension in a shape, None without a batch axis."""
        return shape[self.axes.index("N")] if "N" in self.axes else None


# ---- shapes


def describe(args: argparse.Namespace, ports: Sequence[Output], decodes: bool, warn: Warn) -> list[Input]:
    """Return the inputs as the flags -shape, -data_shape, -layout, -b, --mean_values and --scale_values describe them.

    A model that ``decodes`` has data for one token where no shape is given. Raises: ValueError for flags that do not
    fit the model, RuntimeError for unknown names.
    """
    shapes = parse_shapes([args.shape] if args.shape else [], ports)
    named = layouts(args.layout)
    described = []
    for index, port in enumerate(ports):
        shape = PartialShape(shapes[index][0] if index in shapes else port.partial_shape)
        axes = next(
            (named[name] for name in (*sorted(port.get_names()), port.node.friendly_name, "") if name in named), None
        )
        described.append(Input(port, image_layout(port, shape) if axes is None else axes, shape))
    if args.batch_size:
        _set_batch(described, Dimension(args.batch_size), bool(args.data_shape), warn)
    _set_data_shapes(described, _data_shapes(args.data_shape, ports), decodes, warn)
    for statistic in ("mean", "scale"):
        for name, numbers in parse_numbers(getattr(args, f"{statistic}_values")).items():
            for entry in described:
                if name in entry.names if name else entry.is_image:
                    setattr(entry, statistic, numbers)
    return described


def layouts(text: str) -> dict[str, str]:
    """Return layouts by input name ("" if there is none) from ``in1[NCHW],[NC]``. Raises ValueError for other text."""
    layout_by_name = {}
    for part in filter(None, text.replace("]", "] ").replace(",", " ").split()):
        name, separator, layout = part.rstrip("]").partition("[")
        if not separator or not part.endswith("]"):
            raise ValueError(f"cannot read the layout {part!r}: write [NCHW] or name[NCHW]")
        layout_by_name[name] = layout
    return layout_by_name


def batch_size(inputs: Sequence[Input]) -> Dimension:
    """Return the batch size of all inputs, 1 without a batch axis. Raises ValueError if the inputs differ in it."""
    sizes = {str(size): size for entry in inputs if (size := entry.batch(entry.shape)) is not None}
    if len(sizes) > 1:
        raise ValueError(f"the inputs have different batch sizes: {', '.join(sizes)}; see -layout")
    return next(iter(sizes.values()), Dimension(1))


def _set_batch(inputs: Sequence[Input], batch: Dimension, with_data: bool, warn: Warn) -> None:
    if batch.is_static and with_data:
        warn("Batch size will be ignored. Provide batch dimension in data_shape parameter.")
        return
    for entry in inputs:
        first = entry.shape[0] if entry.shape.rank.is_static and len(entry.shape) else None
        if not entry.axes and first is not None and (first.is_dynamic or first.get_length() in (0, 1)):
            warn(
                f"Batch dimension is not specified for input '{entry.name}'. The first dimension will be interpreted "
                "as batch size."
            )
            entry.axes = "N..."
        if "N" in entry.axes:
            entry.shape[entry.axes.index("N")] = batch
    if not any("N" in entry.axes for entry in inputs):
        raise ValueError("-b: no input has a batch dimension; name it with -layout, as in [NC]")


def _data_shapes(text: str, ports: Sequence[Output]) -> dict[int, list[PartialShape]]:
    """Return the shapes of -data_shape by input. Several shapes without a name are for the inputs in turns."""
    if not text.lstrip().startswith("[") or text.count("[") == 1 or len(ports) == 1:
        return parse_shapes([text] if text else [], ports)
    shapes = [PartialShape(part) for part in re.findall(r"\[[^\]]*\]", text)]
    if len(shapes) % len(ports):
        raise ValueError(f"-data_shape {text}: {len(shapes)} shapes for {len(ports)} inputs")
    return {i: shapes[i :: len(ports)] for i in range(len(ports))}


def _set_data_shapes(
    inputs: Sequence[Input], given: Mapping[int, Sequence[PartialShape]], decodes: bool, warn: Warn
) -> None:
    for index, entry in enumerate(inputs):
        if index in given and entry.shape.is_static:
            warn(f"Input '{entry.name}' has static shape. Provided data shapes for this input will be ignored.")
        elif index in given:
            for shape in given[index]:
                if shape.is_dynamic or not entry.shape.compatible(shape):
                    raise ValueError(
                        f"-data_shape: {shape} for input '{entry.name}' of shape {entry.shape} "
                        + ("is dynamic" if shape.is_dynamic else "does not fit")
                    )
            entry.data_shapes = [tuple(shape.to_shape()) for shape in given[index]]
        elif decodes and entry.shape.is_dynamic:
            entry.data_shapes = [tuple(one_token(entry.port).to_shape())]


# ---- preprocessing


def preprocess(model: Model, args: argparse.Namespace, inputs: Sequence[Input]) -> Model:
    """Return the model with the types of -ip, -op and -iop (u8 for images), means and scales.

    Raises: RuntimeError for a name in -iop that the model does not have.
    """
    processor = PrePostProcessor(model)
    types = dict(_types(args.input_output_precision))
    for index, entry in enumerate(inputs):
        named = next((types.pop(name) for name in entry.names if name in types), None)
        chosen = named or (_type(args.input_precision) if args.input_precision else Type.u8 if entry.is_image else None)
        if chosen is not None:
            processor.input(index).tensor().set_element_type(chosen)
        for statistic in ("mean", "scale"):
            if values := getattr(entry, statistic):
                getattr(processor.input(index).preprocess().convert_element_type(Type.f32), statistic)(list(values))
        if entry.axes:
            processor.input(index).model().set_layout(Layout(entry.axes))
    for index, port in enumerate(model.outputs):
        names = (*sorted(port.get_names()), port.tensor_port.node.friendly_name)
        named = next((types.pop(name) for name in names if name in types), None)
        chosen = named or (_type(args.output_precision) if args.output_precision else None)
        if chosen is not None:
            processor.output(index).tensor().set_element_type(chosen)
    if types:
        raise RuntimeError(f"-iop: the model has no input or output '{next(iter(types))}'")
    return processor.build()


def _types(text: str) -> Iterator[tuple[str, Type]]:
    for part in filter(None, text.replace(" ", "").split(",")):
        name, separator, type_name = part.rpartition(":")
        if not separator:
            raise ValueError(f"-iop {text}: write 'input:f16,output:f16'")
        yield name, _type(type_name)


def _type(name: str) -> Type:
    if name not in TYPES:
        raise ValueError(f"-iop: there is no type {name!r}; there are {', '.join(TYPES)}")
    element_type: Type = Type.boolean if name == "bool" else getattr(Type, name)
    return element_type


# ---- tensors


def tensors(
    args: argparse.Namespace, ports: Sequence[Output], inputs: Sequence[Input], warn: Warn, info: Callable[[str], None]
) -> list[list[Array]]:
    """Return the tensors of each input, which inferences take in turns: from files, else random ones.

    Raises: ValueError for files that do not fit, and for a dynamic input without files or -data_shape.
    """
    files = _files([text for group in args.paths_to_input for text in group], inputs, warn)
    images = {
        tuple(entry.shape[entry.axes.index(axis)].get_max_length() for axis in "HW")
        for entry in inputs
        if entry.is_image and entry.shape.is_static
    }
    random = np.random.default_rng(0)
    arrays = []
    for index, (entry, port) in enumerate(zip(inputs, ports)):
        if index in files:
            arrays.append(_of_files(files[index], entry, port, info))
        elif not entry.shapes:
            raise ValueError(
                f"input '{entry.name}' has the dynamic shape {entry.shape}: give the shape of its data "
                f"with -data_shape {entry.name}{example_shape(entry.shape)}, or files with -i"
            )
        elif entry.is_image_info and len(images) == 1:
            size = next(iter(images))
            arrays.append([_image_info(shape, size).astype(port.element_type.storage) for shape in entry.shapes])
        else:
            is_random = port.element_type.is_real() or entry.is_image
            filling = "random values" if is_random else "ones" if "mask" in entry.name else "zeros"
            warn(f"No input files were given for input '{entry.name}'!. This input will be filled with {filling}!")
            content = "random" if entry.is_image else None
            arrays.append([fill(port, shape, content, random) for shape in entry.shapes])
    return arrays


def _of_files(paths: Sequence[Path], entry: Input, port: Output, info: Callable[[str], None]) -> list[Array]:
    """Return tensors with the contents of files of one kind, at least one per shape of the data."""
    if paths[0].suffix.lower() not in SUFFIXES:
        shapes: Sequence[Shape] = entry.shapes or [()]
        arrays = [
            read_array(paths[i % len(paths)], port, shapes[i % len(shapes)])
            for i in range(max(len(paths), len(shapes)))
        ]
        for path, array in zip(paths, arrays):
            if not entry.shape.compatible(PartialShape(array.shape)):
                raise ValueError(f"{path} has shape {list(array.shape)}, and input '{entry.name}' {entry.shape}")
    else:
        open_shapes = [PartialShape(shape) for shape in entry.shapes] or [entry.shape]
        batches = [int(entry.batch(s).get_length()) if "N" in entry.axes and s.is_static else 1 for s in open_shapes]
        arrays, first = [], 0
        while len(arrays) < len(open_shapes) or first < len(paths):
            shape_index = len(arrays) % len(open_shapes)
            batch_paths = [paths[(first + i) % len(paths)] for i in range(batches[shape_index])]
            array, note = image_tensor(batch_paths, port, open_shapes[shape_index], Preparation(bgr=True), entry.axes)
            info(f"Prepare image {note}")
            arrays.append(array)
            first += batches[shape_index]
    if not entry.shapes:
        entry.data_shapes = [array.shape for array in arrays]
    return arrays


def _files(texts: Sequence[str], inputs: Sequence[Input], warn: Warn) -> dict[int, list[Path]]:
    """Return the files of each input from texts like ``file,folder`` and ``name:file,folder name:file``.

    Files without the name of an input are for all inputs in turns. An input takes files of one kind: images, else .npy,
    else .bin files. Raises: ValueError for a name that no input has, FileNotFoundError for a file that does not exist.
    """
    by_input: dict[int, list[Path]] = {}
    unnamed: list[Path] = []
    names = {name: index for index, entry in reversed(list(enumerate(inputs))) for name in entry.names}
    splitter = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    for text in texts:
        head, *named = re.split(rf"(?:^|,)({splitter}):", text)
        if head and not named and not Path(head.split(",")[0]).exists() and (wrong := re.match(r"([\w.]+):", head)):
            raise ValueError(f"-i {text}: there is no input '{wrong[1]}'; the model has {', '.join(names)}")
        unnamed += _listed(head)
        for name, paths in zip(named[::2], named[1::2]):
            by_input.setdefault(names[name], []).extend(_listed(paths))
    free = [index for index, entry in enumerate(inputs) if not entry.is_image_info] or list(range(len(inputs)))
    if unnamed and len(inputs) > 1:
        warn(
            f"Model has {len(inputs)} inputs. It's recommended to use name mapping to specify parameters for each "
            "input."
        )
    for position, path in enumerate(unnamed):
        by_input.setdefault(free[position % len(free)], []).append(path)
    return {index: _of_one_kind(paths, warn) for index, paths in by_input.items()}


def _listed(text: str) -> list[Path]:
    listed: list[Path] = []
    for part in filter(None, text.strip(",").split(",")):
        path = Path(part)
        listed += sorted(path.iterdir()) if path.is_dir() else [path]
    return listed


def _of_one_kind(paths: Sequence[Path], warn: Warn) -> list[Path]:
    for suffixes in (SUFFIXES, (".npy",), (".bin",)):
        if chosen := sorted(path for path in paths if path.suffix.lower() in suffixes):
            if ignored := [path.name for path in paths if path.suffix.lower() not in suffixes]:
                warn(f"These files are ignored: {', '.join(ignored)}")
            return chosen
    raise ValueError(f"-i {paths[0]}: inputs are read from images ({', '.join(SUFFIXES)}), .npy and .bin files")


def _image_info(shape: Shape, size: tuple[int, ...]) -> Array:
    """Return rows of the image's height, its width, and ones."""
    rows = np.ones(shape)
    rows[:, :2] = size
    return rows
