"""Descriptions of an input or output by the user: of the user's tensor, the model's tensor, and the steps between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ovgpu.preprocess._color import ColorFormat, planes
from ovgpu.preprocess._steps import PostProcessSteps, PreProcessSteps
from ovgpu.tensor import Tensor
from ovgpu.types import Layout, PartialShape, Type


class _TensorInfo:
    """Description of a tensor on either side: its layout."""

    layout: Layout | None = None

    def set_layout(self, layout: Layout | str) -> Self:
        """Set the layout, which names the axes."""
        self.layout = layout if isinstance(layout, Layout) else Layout(layout)
        return self


class InputModelInfo(_TensorInfo):
    """Description of the tensor that the model takes."""


class OutputModelInfo(_TensorInfo):
    """Description of the tensor that the model computes."""


class OutputTensorInfo(_TensorInfo):
    """Description of the tensor that the user gets."""

    element_type: Type | None = None

    def set_element_type(self, type: Type) -> Self:
        """Set the element type. The default is the model's."""
        self.element_type = type
        return self


class InputTensorInfo(OutputTensorInfo):
    """Description of the tensor that the user sets. Defaults are the model's properties."""

    shape: PartialShape | None = None
    spatial: tuple[int, int] | None = None  # height and width, -1 where dynamic
    color = ColorFormat.UNDEFINED
    sub_names: Sequence[str] = ()
    memory_type: str | None = None

    def set_shape(self, shape: Any) -> Self:
        """Set the shape."""
        self.shape = PartialShape(shape)
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Make height and width dynamic: they may differ between inferences."""
        self.spatial = (-1, -1)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Set height and width in pixels."""
        self.spatial = (height, width)
        return self

    def set_from(self, tensor: Any) -> Self:
        """Set element type and shape to those of a Tensor or an array."""
        tensor = tensor if isinstance(tensor, Tensor) else Tensor(np.asarray(tensor))
        return self.set_element_type(tensor.element_type).set_shape(tensor.shape)

    def set_color_format(self, format: ColorFormat, sub_names: Sequence[str] = ()) -> Self:
        """Set the colour format. Each of several planes becomes an input of its own, called "<name>/<sub-name>".

        Raises: RuntimeError if the number of names is neither 0 nor the number of planes, or for a single plane.
        """
        count = planes(format)
        if sub_names and count == 1:
            raise RuntimeError(f"Plane names are not allowed for single plane color format '{format.name}'")
        if sub_names and len(sub_names) != count:
            raise RuntimeError(f"{len(sub_names)} plane names do not match the {count} planes of '{format.name}'")
        self.color, self.sub_names = format, tuple(sub_names)
        return self

    def set_memory_type(self, memory_type: str) -> Self:
        """Set a hint for other plugins. It is stored in the input's ``rt_info``."""
        self.memory_type = memory_type
        return self


class InputInfo:
    """Description of an input: the user's tensor, the steps, the model's tensor."""

    def __init__(self) -> None:
        self._tensor, self._steps, self._model = InputTensorInfo(), PreProcessSteps(), InputModelInfo()

    def tensor(self) -> InputTensorInfo:
        return self._tensor

    def preprocess(self) -> PreProcessSteps:
        return self._steps

    def model(self) -> InputModelInfo:
        return self._model


class OutputInfo:
    """Description of an output: the model's tensor, the steps, the user's tensor."""

    def __init__(self) -> None:
        self._tensor, self._steps, self._model = OutputTensorInfo(), PostProcessSteps(), OutputModelInfo()

    def tensor(self) -> OutputTensorInfo:
        return self._tensor

    def postprocess(self) -> PostProcessSteps:
        return self._steps

    def model(self) -> OutputModelInfo:
        return self._model
