"""Names that ovgpu leaves to openvino: handed over where it is installed, placeholders where it is not."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import openvino
import openvino._offline_transformations
import openvino.passes
import openvino.tools.ovc
import pytest

import ovgpu as ov
from ovgpu import opset13 as ops
from ovgpu._util import openvino_package
from ovgpu._util.openvino_package import HINT
from ovgpu.interop import names

HANDED_OVER = sorted(names.MODULES - {"_pyopenvino", "torch"})  # torch is not installed
OURS = ("exceptions", "helpers", "layout_helpers", "passes", "preprocess", "properties", "utils", "utils.types")


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ovgpu find no openvino, and forget what it has handed over."""
    monkeypatch.setattr(openvino_package, "package", lambda: None)
    for name in [name for name in list(sys.modules) if name.startswith("ovgpu.") and is_handed_over(name)]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in list(sys.modules) if name.startswith("ovgpu.") and is_handed_over(name)]:
        del sys.modules[name]


def is_handed_over(name: str) -> bool:
    return name.split(".")[1] in names.MODULES


def public(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


def relu(shape: Any = (1, 3), kind: Any = ov.Type.f32, name: str = "x") -> openvino.Model:
    x = ops.parameter(ov.PartialShape(shape), kind, name=name)
    return ov.Model([ops.relu(x)], [x], "relu")


# ---- with openvino


def test_every_name_of_openvino_exists() -> None:
    missing = {name for name in public(openvino) if not hasattr(ov, name)}
    assert missing == {"torch"} & missing  # loaded only if torch is installed
    for name in (*HANDED_OVER, *OURS):
        theirs, mine = attrgetter(name)(openvino), import_module(f"ovgpu.{name}")
        missing = {
            name
            for name in public(theirs)
            if not hasattr(mine, name) and not isinstance(getattr(theirs, name), ModuleType)
        }
        assert not missing - {"Union", "get_version"}, name  # helpers of these modules


def test_modules_are_imported_like_files() -> None:
    from ovgpu._offline_transformations import apply_moc_transformations
    from ovgpu.frontend import FrontEndManager
    from ovgpu.frontend.onnx import ConversionExtension
    from ovgpu.tools.ovc import convert_model

    assert all(map(callable, (apply_moc_transformations, ConversionExtension, FrontEndManager, convert_model)))
    with pytest.raises(ImportError):
        from ovgpu.opset13 import nope  # noqa: F401
    with pytest.raises(ImportError):
        import_module("ovgpu.nope")
    with pytest.raises(AttributeError, match="nope"):
        ov.nope  # noqa: B018


def test_functions_take_our_types_and_shapes() -> None:
    x = ops.parameter(ov.PartialShape([1, ov.Dimension(2, 5), -1]), ov.Type.f16, name="x")
    assert x.get_element_type() == ov.Type.f16 == x.get_element_type() != ov.Type.f32
    assert x.get_partial_shape() == ov.PartialShape("1,2..5,?") == x.get_partial_shape() != ov.PartialShape([1])
    assert x.get_partial_shape()[1] == ov.Dimension(2, 5) == x.get_partial_shape()[1] != ov.Dimension(2)
    constant = ops.constant(np.ones(3), dtype=ov.Type.i8)
    assert constant.get_element_type() == ov.Type.i8 and constant.shape == ov.Shape([3])
    shared = np.arange(3, dtype=np.int32)
    tensor = ov.op.Constant(ov.Tensor(shared, shared_memory=True))
    assert tensor.data.tolist() == [0, 1, 2] and openvino.Layout("NC") == ov.Layout("NC") != openvino.Layout("CN")


def test_classes_remain_classes() -> None:
    Parameter = ov.op.Parameter
    found = Parameter(ov.Type.f32, ov.PartialShape([1]))
    assert type(found) is openvino.op.Parameter and isinstance(found, Parameter) and (type(found) == Parameter)  # noqa: E721
    assert issubclass(openvino.op.Parameter, Parameter) and not issubclass(openvino.op.Result, Parameter)
    assert {Parameter: 1}[type(found)] == 1 and (Parameter | None) and not isinstance(3, Parameter)

    class Pass(ov.passes.MatcherPass):  # type: ignore[misc, name-defined]
        def __init__(self, called: list[int]) -> None:
            ov.passes.MatcherPass.__init__(self)
            pattern = ov.passes.WrapType("opset13::Relu")
            self.register_matcher(ov.passes.Matcher(pattern, "relu"), lambda matcher: bool(called.append(1)))

    called: list[int] = []
    manager = ov.passes.Manager()
    manager.register_pass(Pass(called))
    manager.run_passes(relu())
    assert called == [1] and isinstance(Pass([]), openvino.passes.MatcherPass) and not isinstance(found, Pass)
    assert ov.frontend.FrontEndManager is ov.frontend.FrontEndManager


def test_models_of_openvino_are_compiled(tmp_path: Path) -> None:
    model, x = relu(), np.array([[1, -1, 2]], np.float32)
    assert type(model) is openvino.Model and isinstance(model, ov.Model) and isinstance(model.outputs[0], ov.Output)
    assert isinstance(model.get_parameters()[0], ov.Node) and not isinstance(3, ov.Model)
    assert ov.compile_model(model, "CPU")([x])[0].tolist() == [[1, 0, 2]]
    request = ov.compile_model(model, "CPU").create_infer_request()
    request.set_tensor(model.input(0), ov.Tensor(x))
    assert request.infer()[model.output(0)].tolist() == [[1, 0, 2]] == request.get_tensor(model.output(0)).data.tolist()
    with pytest.raises(KeyError):
        request.results[relu(name="other").input(0)]
    assert ov.Core().query_model(model, "CPU") == {node.friendly_name: "CPU" for node in model.get_ops()}
    ov.save_model(model, tmp_path / "saved.xml")
    ov.serialize(model, tmp_path / "serialized.xml")
    for name in ("saved", "serialized"):
        assert ov.compile_model(tmp_path / f"{name}.xml", "CPU")([x])[0].tolist() == [[1, 0, 2]]
    with pytest.raises(TypeError, match="Model isn't supported"):
        ov.Core().read_model(model)


def test_batch_and_preprocessing_of_openvino_models() -> None:
    model = relu((1, 3, 4, 4))
    model.get_parameters()[0].set_layout(openvino.Layout("NCHW"))
    assert ov.get_batch(model) == 1
    ov.set_batch(model, 2)
    assert ov.get_batch(model) == ov.Dimension(2)
    steps = ov.preprocess.PrePostProcessor(model)
    steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(
        ov.preprocess.ColorFormat.BGR
    )
    steps.input().model().set_layout(ov.Layout("NCHW"))
    steps.input().preprocess().convert_color(ov.preprocess.ColorFormat.RGB).convert_element_type(ov.Type.f32)
    built = steps.build()
    assert built.input().get_element_type() == ov.Type.u8 and built.input().shape == [2, 4, 4, 3]
    assert ov.compile_model(built, "CPU")([np.ones((2, 4, 4, 3), np.uint8)])[0].sum() == 96


def test_onnx_models_are_read(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    port = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", port[:1], port[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=9)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (path, str(path), path.read_bytes(), path.open("rb")):
        found = ov.Core().read_model(source)
        assert type(found) is ov.Model and found.input().get_names() == {"x"}
    assert ov.compile_model(path, "CPU")([np.array([[1, -1, 2]], np.float32)])["y"].tolist() == [[1, 0, 2]]
    assert isinstance(ov.convert_model(path), openvino.Model)


def test_exceptions_are_those_of_the_builders() -> None:
    with pytest.raises(ov.exceptions.UserInputError):
        ov.opset8.detection_output(*[ops.parameter([1, 3])] * 3, {})


# ---- without openvino


def test_names_can_be_imported_without_openvino(without_openvino: None) -> None:
    for name in HANDED_OVER:
        module = import_module(f"ovgpu.{name}")
        assert isinstance(module.Anything, type), name
    for name in names.NAMES:
        assert isinstance(names.attribute("ovgpu", name), type), name
    from ovgpu.frontend.pytorch import decoder  # noqa: F401
    from ovgpu.op import Parameter

    class Subclass(Parameter):
        pass

    for use in (lambda: Parameter(1), lambda: Subclass(), lambda: Parameter.method):
        with pytest.raises(ImportError, match=f"^ovgpu.op.Parameter needs openvino: {re.escape(HINT)}$"):
            use()
    assert not isinstance(3, Parameter) and not hasattr(Parameter, "__wrapped__")


def test_in_a_process_without_openvino() -> None:
    code = (
        "import sys; sys.modules['openvino'] = None\n"
        "import ovgpu as ov\n"
        "print(ov.opset13.relu, ov.Symbol, ov.exceptions.OVTypeError.__bases__)\n"
        "print(ov.utils.types.get_element_type(bool))\n"
        "try: ov.convert_model('m.onnx')\n"
        "except ImportError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "<class 'ovgpu.opset13.relu'> <class 'ovgpu.Symbol'> (<class 'ovgpu.exceptions.OVError'>, <class 'TypeError'>)",
        "<Type: 'char'>",
        f"ovgpu.convert_model needs openvino: {HINT}",
    ]
