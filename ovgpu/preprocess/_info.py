"""What the user says of an input or an output: of his tensor, of the model's, and of the steps between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ovgpu.preprocess._color import ColorFormat, planes
from ovgpu.preprocess._steps import PostProcessSteps, PreProcessSteps
from ovgpu.tensor import Tensor
from ovgpu.types import Layout, PartialShape, Type


class _Described:
    """What tensors of both sides have: a layout."""

    layout: Layout | None = None

    def set_layout(self, layout: Layout | str) -> Self:
        """Says what the axes mean."""
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        return self


class InputModelInfo(_Described):
    """The tensor that the model takes."""


class OutputModelInfo(_Described):
    """The tensor that the model gives."""


class OutputTensorInfo(_Described):
    """The tensor that the user gets."""

    element_type: Type | None = None

    def set_element_type(self, type: Type) -> Self:
        """The element type; without it, that of the model."""
        self.element_type = type
        return self


class InputTensorInfo(OutputTensorInfo):
    """The tensor that the user sets. What is not said is as the model has it."""

    shape: PartialShape | None = None
    spatial: tuple[int, int] | None = None  # height and width, -1 where dynamic
    color = ColorFormat.UNDEFINED
    sub_names: Sequence[str] = ()
    memory_type: str | None = None

    def set_shape(self, shape: Any) -> Self:
        """The whole shape."""
        self.shape = PartialShape(shape)
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Height and width change from one inference to the next."""
        self.spatial = (-1, -1)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Height and width."""
        self.spatial = (height, width)
        return self

    def set_from(self, tensor: Any) -> Self:
        """Element type and shape of a Tensor or an array."""
        tensor = tensor if isinstance(tensor, Tensor) else Tensor(np.asarray(tensor))
        return self.set_element_type(tensor.element_type).set_shape(tensor.shape)

    def set_color_format(self, format: ColorFormat, sub_names: Sequence[str] = ()) -> Self:
        """How pixels are stored. Each plane is an input of its own, called "<name>/<sub-name>"."""
        count = planes(format)
        if sub_names and count == 1:
            raise RuntimeError(f"Plane names are not allowed for single plane color format '{format.name}'")
        if sub_names and len(sub_names) != count:
            raise RuntimeError(f"{len(sub_names)} plane names do not match the {count} planes of '{format.name}'")
        self.color, self.sub_names = format, tuple(sub_names)
        return self

    def set_memory_type(self, memory_type: str) -> Self:
        """A hint for other plugins, kept with the input."""
        self.memory_type = memory_type
        return self


class InputInfo:
    """An input: the user's tensor, the steps, the model's tensor."""

    def __init__(self) -> None:
        self._tensor, self._steps, self._model = InputTensorInfo(), PreProcessSteps(), InputModelInfo()

    def tensor(self) -> InputTensorInfo:
        return self._tensor

    def preprocess(self) -> PreProcessSteps:
        return self._steps

    def model(self) -> InputModelInfo:
        return self._model


class OutputInfo:
    """An output: the model's tensor, the steps, the user's tensor."""

    def __init__(self) -> None:
        self._tensor, self._steps, self._model = OutputTensorInfo(), PostProcessSteps(), OutputModelInfo()

    def tensor(self) -> OutputTensorInfo:
        return self._tensor

    def postprocess(self) -> PostProcessSteps:
        return self._steps

    def model(self) -> OutputModelInfo:
        return self._model
