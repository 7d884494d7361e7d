"""A user's program for type checkers, which `.ci/run lint` runs on it. No test imports it.

A line with an ignore comment is wrong, and a checker that finds nothing there complains about the comment.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import ovgpu as ov
from ovgpu import (  # type: ignore[attr-defined]
    AsyncInferQueue,
    DynamicBatcher,
    Foo,  # pyright: ignore[reportAttributeAccessIssue]
    SequenceBatcher,
    install,
    replace_openvino,
    uninstall,
)
from ovgpu import opset13 as ops
from ovgpu.preprocess import PrePostProcessor
from ovgpu.properties import hint

Array = np.ndarray[Any, Any]

print(Foo)
ov.Coer()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
core = ov.Core()
model = core.read_model("model.xml")
assert_type(model, ov.Model)
assert_type(model.inputs[0].partial_shape, ov.PartialShape)
assert_type(model.inputs[0].any_name, str)
assert_type(model.name, str)
model.reshape([1, 3, 224, 224])
node = model.get_ops()[0]
assert_type(node, ov.Node)
assert_type(node.type_name, str)
assert_type(node.shape, ov.Shape)
assert_type(node.output(0).element_type, ov.Type)
assert_type(node.output(0).names, set[str])
node.output(0).any_name = "x"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

compiled = core.compile_model(model, "AUTO", {hint.performance_mode: hint.PerformanceMode.LATENCY})
assert_type(compiled, ov.CompiledModel)
core.compile_model(model, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
result = compiled([np.ones((1, 3, 224, 224), np.float32)])
assert_type(result[compiled.output(0)], Array)
assert_type(result[0], Array)
request = compiled.create_infer_request()
assert_type(request, ov.InferRequest)
request.infer({"x": 1}, share_input=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(request.profiling_info[0], ov.ProfilingInfo)
assert_type(request.query_state()[0].name, str)

queue = AsyncInferQueue(compiled, 4)
queue.set_callback(lambda request, userdata: print(request.latency, userdata))
batcher = SequenceBatcher(model, max_sequences=4)
DynamicBatcher(model, max_batch_size="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

install(instead_of=["AUTO", "GPU"])
install(instead_of=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
uninstall()
replace_openvino()
ov.convert_model("model.onnx")
ops.relu(ops.parameter([1], ov.Type.f32))
PrePostProcessor(model).input().tensor().set_layout(ov.Layout("NHWC"))
