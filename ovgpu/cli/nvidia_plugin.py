"""Operations of openvino_contrib's NVIDIA plugin: the types that its sources register as of August 2026, except
internal types that only its own passes create."""

from __future__ import annotations

NVIDIA_PLUGIN = frozenset(
    """
    Abs Acos Acosh Add Asin Asinh Assign Atan Atanh AvgPool BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr
    BitwiseRightShift BitwiseXor Broadcast Ceiling Clamp Concat Constant Convert Convolution ConvolutionBackpropData
    Cos Cosh DetectionOutput Divide Elu Equal Erf Exp FakeQuantize Floor FloorMod GRUCell GRUSequence Gather Gelu
    Greater GreaterEqual GroupConvolution GroupConvolutionBackpropData HSigmoid HSwish I420toBGR I420toRGB
    Interpolate LSTMCell LSTMSequence Less LessEqual Log LogicalAnd LogicalNot LogicalOr LogicalXor MVN MatMul
    MaxPool Maximum Minimum Mish Mod Multiply NV12toBGR NV12toRGB Negative NotEqual PRelu Pad Parameter Power Range
    ReadValue ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Result Round ScatterNDUpdate
    ScatterUpdate Select ShapeOf Sigmoid Sign Sin Sinh SoftPlus SoftSign Softmax Split Sqrt SquaredDifference
    Squeeze StridedSlice Subtract Swish Tan Tanh TensorIterator TopK Transpose Unsqueeze VariadicSplit
""".split()
)
