"""Small models built with openvino, one function each. `MODELS` lists them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset3, opset6, opset8
from openvino import opset13 as ops
from openvino.op import util

Build = Callable[[], ov.Model]
MODELS: dict[str, Build] = {}


def model(build: Build) -> Build:
    MODELS[build.__name__] = build
    return build


def param(*shape: Any, type: Any = np.float32, name: str | None = None) -> Any:
    return ops.parameter(ov.PartialShape(list(shape)), type, name=name)


def const(values: Any, type: Any = np.float32) -> Any:
    return ops.constant(np.asarray(values, type))


def weights(*shape: int) -> Any:
    return const(np.random.default_rng(3).standard_normal(shape))


def model_of(outputs: Any, inputs: list[Any], sinks: list[Any] | None = None) -> ov.Model:
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return ov.Model([ops.result(o) for o in outputs], sinks or [], inputs, "model")


@model
def dense() -> ov.Model:
    x = param(2, 5, name="x")
    return model_of(ops.softmax(ops.add(ops.matmul(x, weights(5, 7), False, False), weights(7)), 1), [x])


@model
def convolution() -> ov.Model:
    x = param(1, 3, 9, 7)
    y = ops.convolution(x, weights(4, 3, 3, 2), [2, 1], [1, 0], [0, 1], [1, 1], "explicit")
    y = ops.prelu(y, const([0.1, 0.2, 0.3, 0.4]))
    return model_of(ops.max_pool(y, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2]).output(0), [x])


@model
def attributes() -> ov.Model:
    """Build layers with attributes of every kind: numbers, lists, texts, booleans, types."""
    x = param(1, 2, 6, 5)
    y = ops.interpolate(
        x,
        const([12, 9], np.int64),
        "linear_onnx",
        "sizes",
        pads_begin=[0, 0, 1, 0],
        pads_end=[0, 0, 0, 1],
        coordinate_transformation_mode="asymmetric",
        cube_coeff=-0.6,
        axes=const([2, 3], np.int64),
    )
    y = ops.clamp(ops.elu(y, 0.3), -0.25, 1e10)
    top = ops.topk(y, const(3, np.int64), 2, "max", "value", index_element_type="i64")
    return model_of([top.output(0), top.output(1), ops.mvn(y, const([2, 3], np.int64), True, 1e-6, "inside_sqrt")], [x])


@model
def many_outputs() -> ov.Model:
    x = param(-1, 6)
    split = ops.variadic_split(x, const(1, np.int64), const([1, 2, 3], np.int64))
    return model_of([split.output(2), split.output(0), ops.relu(split.output(2))], [x])


@model
def dynamic_shapes() -> ov.Model:
    x = param(-1, (2, 8), 3)
    return model_of([ops.shape_of(x), ops.reshape(x, const([0, -1], np.int64), True)], [x])


@model
def scalars() -> ov.Model:
    x = param()
    return model_of([ops.add(x, const(2.5)), ops.unsqueeze(x, const([0, 1], np.int64))], [x])


@model
def zero_extent() -> ov.Model:
    x = param(2, 3)
    return model_of(ops.concat([x, const(np.zeros((0, 3)))], 0), [x])


@model
def equal_constants() -> ov.Model:
    x = param(4)
    return model_of(ops.multiply(ops.add(x, const([1, 2, 3, 4])), const([1, 2, 3, 4])), [x])


@model
def sequence() -> ov.Model:
    x, h, c = param(2, 4, 3), param(2, 1, 5), param(2, 1, 5)
    lstm = ops.lstm_sequence(
        x,
        h,
        c,
        const([4, 2], np.int64),
        weights(1, 20, 3),
        weights(1, 20, 5),
        weights(1, 20),
        5,
        "forward",
        ["sigmoid", "tanh", "tanh"],
        [],
        [],
        0.0,
    )
    return model_of([lstm.output(0), lstm.output(1)], [x, h, c])


def low_bit(name: str) -> ov.Model:
    packed = ov.op.Constant(getattr(ov.Type, name), ov.Shape([3, 5]), [1, 0, 3, 2, 1, 0, 1, 1, 2, 3, 0, 0, 1, 2, 3])
    x = param(2, 3)
    return model_of(ops.matmul(x, ops.multiply(ops.convert(packed, np.float32), weights(3, 1)), False, False), [x])


for _name in ("i4", "u4", "u2", "i8", "u8", "nf4", "f8e4m3", "f8e5m2", "f4e2m1", "bf16", "f16", "f64", "i16", "u1"):
    MODELS[f"weights_of_{_name}"] = partial(low_bit, _name)


@model
def strings() -> ov.Model:
    x = param(2)
    table = ov.op.Constant(ov.Tensor(["ab", "", "x" * 40]))
    return model_of(
        [x, ops.string_tensor_unpack(table).output(1)]
        if hasattr(ops, "string_tensor_unpack")
        else [ops.relu(x), table],
        [x],
    )


def body() -> tuple[ov.Model, list[Any], list[Any]]:
    """Build h' = (x_t + h) * w, with two results: h' as it is, and with an axis to concatenate along."""
    w, x, h = param(1, 3), param(1, 1, 3), param(1, 3)
    y = ops.multiply(ops.add(ops.squeeze(x, const([1], np.int64)), h), w)
    ends = [ops.result(y), ops.result(ops.unsqueeze(y, const([1], np.int64)))]
    return ov.Model(ends, [w, x, h], "body"), [w, x, h], ends


@model
def tensor_iterator() -> ov.Model:
    inner, (w, x, h), (last, every) = body()
    outer = param(1, 4, 3), param(1, 3), param(1, 3)
    loop = ops.tensor_iterator()
    loop.set_body(inner)
    loop.set_sliced_input(x, outer[0].output(0), -1, -1, 1, 0, 1)
    loop.set_merged_input(h, outer[1].output(0), last.output(0))
    loop.set_invariant_input(w, outer[2].output(0))
    ends = [loop.get_iter_value(last.output(0), -1), loop.get_concatenated_slices(every.output(0), -1, -1, 1, 0, 1)]
    return model_of(ends, list(outer))


@model
def loop() -> ov.Model:
    count, x, h = ops.parameter([], np.int64), param(1, 1, 3), param(1, 3)
    y = ops.add(ops.add(ops.squeeze(x, const([1], np.int64)), h), ops.convert(count, np.float32))
    going = ops.result(ops.less(count, const(2, np.int64)))
    last, every = ops.result(y), ops.result(ops.unsqueeze(y, const([1], np.int64)))
    outer = param(1, 4, 3), param(1, 3)
    node = ops.loop(const(4, np.int64), const(True, bool))
    node.set_function(ov.Model([last, going, every], [x, count, h], "body"))
    node.set_special_body_ports([1, 1])
    node.set_sliced_input(x, outer[0].output(0), 0, 1, 1, -1, 1)
    node.set_merged_input(h, outer[1].output(0), last.output(0))
    return model_of(
        [node.get_iter_value(last.output(0), -1), node.get_concatenated_slices(every.output(0), 0, 1, 1, -1, 1)],
        list(outer),
    )


@model
def branches() -> ov.Model:
    c, x, y = ops.parameter([], bool), param(2, 3), param(2, 3)
    tx, ty, ex = param(2, 3), param(2, 3), param(2, 3)
    then = ov.Model([ops.result(ops.add(tx, ty)), ops.result(ops.negative(tx))], [ty, tx], "then")
    other = ov.Model([ops.result(ops.abs(ex)), ops.result(ops.relu(ex))], [ex], "else")
    node = ops.if_op(c)
    node.set_then_body(then)
    node.set_else_body(other)
    node.set_input(x.output(0), tx, ex)
    node.set_input(y.output(0), ty, None)
    return model_of(
        [node.set_output(then.results[0], other.results[1]), node.set_output(then.results[1], other.results[0])],
        [c, x, y],
    )


@model
def nested_bodies() -> ov.Model:
    c, x = ops.parameter([], bool), param(1, 4, 3)
    bc, bx = ops.parameter([], bool), param(1, 1, 3)
    tx, ex = param(1, 1, 3), param(1, 1, 3)
    then = ov.Model([ops.result(ops.multiply(tx, const([1, 2, 3])))], [tx], "then")
    other = ov.Model([ops.result(ops.negative(ex))], [ex], "else")
    node = ops.if_op(bc)
    node.set_then_body(then)
    node.set_else_body(other)
    node.set_input(bx.output(0), tx, ex)
    out = ops.result(node.set_output(then.results[0], other.results[0]))
    outer = ops.tensor_iterator()
    outer.set_body(ov.Model([out], [bc, bx], "body"))
    outer.set_sliced_input(bx, x.output(0), 0, 1, 1, -1, 1)
    outer.set_invariant_input(bc, c.output(0))
    return model_of(outer.get_concatenated_slices(out.output(0), 0, 1, 1, -1, 1), [c, x])


def variable(name: str, *shape: int) -> Any:
    info = util.VariableInfo()
    info.variable_id, info.data_type, info.data_shape = name, ov.Type.f32, ov.PartialShape(list(shape))
    return util.Variable(info)


@model
def state() -> ov.Model:
    x = param(1, 2)
    variable_ab = variable("a,b", -1, 2)
    read = opset6.read_value(const(np.zeros((1, 2))), variable_ab)
    grown = ops.concat([read, x], 0)
    return model_of(ops.multiply(grown, const([2, 3])), [x], [opset6.assign(grown, variable_ab)])


@model
def state_of_version_3() -> ov.Model:
    x = param(1, 2)
    read = opset3.read_value(const(np.ones((1, 2))), "v")
    total = ops.add(read, x)
    return model_of(total, [x], [opset3.assign(total, "v")])


@model
def odd_names() -> ov.Model:
    x = param(2, 3, name='a "quoted" & <odd> name\twith\ntabs')
    x.output(0).set_names({"in,1", "in\\2", "e\u0301 \u4e2d"})
    y = ops.relu(x, name="same")
    z = ops.negative(y, name="same")
    y.output(0).set_names({"middle"})
    found = model_of([z, y], [x])
    found.outputs[0].set_names({"last, but", "not least"})
    return found


@model
def runtime_information() -> ov.Model:
    x = param(1, 2)
    x.set_layout(ov.Layout("NC"))
    y = ops.relu(x)
    y.rt_info["user_data_of_mine"] = "a & b"
    y.output(0).rt_info["user_data"] = "port"
    y.input(0).rt_info["user_data_in"] = "7"
    found = model_of(y, [x])
    found.set_rt_info("v", ["nested", "bad name"])
    found.set_rt_info({"p": {"q": 1}, "r": {}}, "tree")
    found.set_rt_info(True, "flag")
    return found


@model
def old_padding() -> ov.Model:
    x = param(1, 2, 6, 6)
    return model_of(opset8.avg_pool(x, [1, 1], [0, 0], [0, 0], [3, 3], True, auto_pad="same_upper"), [x])
