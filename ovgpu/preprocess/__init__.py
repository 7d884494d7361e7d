"""Pre- and postprocessing as part of the model: the interface of ``openvino.preprocess``.

    ppp = PrePostProcessor(model)
    ppp.input().tensor().set_element_type(Type.u8).set_layout(Layout("NHWC")).set_color_format(ColorFormat.BGR)
    ppp.input().preprocess().convert_color(ColorFormat.RGB).resize(ResizeAlgorithm.RESIZE_LINEAR).mean(127.5)
    ppp.input().model().set_layout(Layout("NCHW"))
    model = ppp.build()

The steps become ordinary operations behind new inputs and before the outputs, so that they run where the model runs.
"""

from ovgpu.preprocess._color import ColorFormat
from ovgpu.preprocess._info import (
    InputInfo,
    InputModelInfo,
    InputTensorInfo,
    OutputInfo,
    OutputModelInfo,
    OutputTensorInfo,
)
from ovgpu.preprocess._processor import PrePostProcessor
from ovgpu.preprocess._steps import PaddingMode, PostProcessSteps, PreProcessSteps, ResizeAlgorithm

__all__ = [
    "ColorFormat",
    "InputInfo",
    "InputModelInfo",
    "InputTensorInfo",
    "OutputInfo",
    "OutputModelInfo",
    "OutputTensorInfo",
    "PaddingMode",
    "PostProcessSteps",
    "PrePostProcessor",
    "PreProcessSteps",
    "ResizeAlgorithm",
]
