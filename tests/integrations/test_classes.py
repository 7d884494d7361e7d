"""Classes of compiled models, requests and queues: their constructors take objects of ovgpu, and may be subclassed."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.integrations.openvino import classes, inference
from tests.api import nets

from .test_openvino import X, counter, doubled

FACADES = (inference.CompiledModel, inference.InferRequest, inference.AsyncInferQueue)


@pytest.fixture(params=["plug-in", "in openvino's place"])
def library(request: pytest.FixtureRequest, core: openvino.Core) -> Any:
    """Return the package that a program imports: openvino, in which ovgpu is installed, or ovgpu."""
    return openvino if request.param == "plug-in" else ovgpu


def compiled_by(library: Any, model: openvino.Model) -> Any:
    return library.Core().compile_model(model, "NVIDIA")


def test_types(core: openvino.Core) -> None:
    """Objects are of openvino's own classes; those of its own devices are unchanged."""
    for name in ("NVIDIA", "CPU"):
        compiled = core.compile_model(doubled(), name)
        request, queue = compiled.create_infer_request(), openvino.AsyncInferQueue(compiled, 2)
        assert type(compiled) is type(request.get_compiled_model()) is openvino.CompiledModel
        assert type(request) is type(queue[0]) is type(next(iter(queue))) is openvino.InferRequest
        assert type(queue) is openvino.AsyncInferQueue and len(queue) == 2
        found: list[Any] = []
        queue.set_callback(lambda request, _: found.append(request.get_output_tensor(0).data.sum()))  # noqa: B023
        queue.start_async([X])
        queue.wait_all()
        assert found == [2 * X.sum()]
        assert compiled.infer_new_request([X])["y"].tolist() == (2 * X).tolist()
        assert (classes.facade_of(compiled) is None) == (name == "CPU")


@pytest.mark.parametrize("facade", FACADES)
def test_facades_have_every_method(facade: Any) -> None:
    """A method that a facade lacked would be called on the stand-in."""
    names = {name for name in dir(facade.stands_for) if name[0] != "_"}
    assert names <= set(dir(facade))
    special = {name for name in vars(facade.stands_for) if name[:2] == "__"} & set(classes.SPECIAL)
    assert special <= set(vars(facade))


def test_a_compiled_model_is_copied(library: Any) -> None:
    """A copy has a private request of its own, and so a state of its own."""
    first = compiled_by(library, counter())
    second = library.CompiledModel(first)
    assert type(second) is library.CompiledModel and [p.any_name for p in second.inputs] == ["x"]
    one = np.ones(2, np.float32)
    assert [model([one])[0][0] for model in (first, first, second, first)] == [1, 2, 1, 3]
    assert second.get_property("EXECUTION_DEVICES") == first.get_property("EXECUTION_DEVICES")


def test_a_request_is_shared(library: Any) -> None:
    first = compiled_by(library, counter()).create_infer_request()
    second = library.InferRequest(first)
    assert type(second) is library.InferRequest
    one = np.ones(2, np.float32)
    assert [request.infer([one])[0][0] for request in (first, second, first)] == [1, 2, 3]
    second.reset_state()
    assert first.infer([one])[0][0] == 1


def test_the_request_of_calls(core: openvino.Core) -> None:
    """Programs that read openvino's attribute find the request that calls of a compiled model use."""
    compiled = core.compile_model(doubled(), "NVIDIA")
    assert compiled._infer_request is None
    result = compiled([X], share_outputs=True)[0]
    assert type(compiled._infer_request) is openvino.InferRequest
    assert np.shares_memory(compiled._infer_request.get_output_tensor(0).data, result)


def test_subclasses(library: Any) -> None:
    """Notebooks collect calibration data by a subclass that is made from a compiled model."""

    class Collecting(library.CompiledModel):  # type: ignore[misc]
        def __init__(self, compiled: Any, kept: list[Any]) -> None:
            super().__init__(compiled)
            self.kept = kept

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            self.kept.append(args[0])
            return super().__call__(*args, **kwargs)

    class Request(library.InferRequest):  # type: ignore[misc]
        def infer(self, *args: Any, **kwargs: Any) -> Any:
            return {"sum": super().infer(*args, **kwargs)["y"].sum()}

    class Queue(library.AsyncInferQueue):  # type: ignore[misc]
        def __init__(self, model: Any, jobs: int, name: str) -> None:
            super().__init__(model, jobs)
            self.name = name

    kept: list[Any] = []
    model = Collecting(compiled_by(library, doubled()), kept)
    assert model([X])["y"].tolist() == (2 * X).tolist() and len(kept) == 1
    assert isinstance(model, library.CompiledModel) and model.output(0).any_name in ("y", "z")
    assert Request(model.create_infer_request()).infer([X]) == {"sum": 2 * X.sum()}
    queue = Queue(model, 3, "q")
    assert (len(queue), queue.name) == (3, "q")
    sums: list[float] = []
    queue.set_callback(lambda request, factor: sums.append(request.results["y"].sum() / factor))
    for factor in (1, 2, 3):
        queue.start_async([X * factor], factor)
    queue.wait_all()
    assert sums == [2 * X.sum()] * 3


def test_several_devices(core: openvino.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a model for several devices shares its requests among them, too."""
    from ovgpu.compile import devices

    monkeypatch.setitem(devices._backends, "NVIDIA.1", devices._backends["NVIDIA"])
    for library in (openvino, ovgpu):
        model = library.CompiledModel(library.Core().compile_model(doubled(), "MULTI:NVIDIA,NVIDIA.1"))
        assert model.get_property("EXECUTION_DEVICES") == ["NVIDIA", "NVIDIA.1"]
        found = [model.create_infer_request().get_compiled_model() for _ in range(2)]
        assert len(found) == 2


@pytest.mark.parametrize("kind", ["u1", "u3", "nf4", "string", "bf16"])
def test_types_that_openvino_lacks(core: openvino.Core, kind: str) -> None:
    """The stand-in of a model whose inputs openvino's CPU refuses is another one."""
    compiled = core.compile_model(core.read_model(*nets.same((2,), kind)), "NVIDIA")
    assert type(compiled) is openvino.CompiledModel
    assert compiled.input(0).get_element_type().get_type_name() == kind
    assert type(compiled.create_infer_request()) is openvino.InferRequest


def test_wrong_arguments(library: Any) -> None:
    for cls in (library.CompiledModel, library.InferRequest, library.AsyncInferQueue):
        with pytest.raises(TypeError):
            cls("no model")
