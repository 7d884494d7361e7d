"""Conversion of torch modules to OpenVINO models, shared by all architectures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ..drive import Array, Call

Inputs = dict[str, Array]
Calls = Callable[[np.random.RandomState], list[Call]]


@dataclass(frozen=True)
class Built:
    """Builder of a model, and the inferences to record, whose outputs are added later.

    `module` is the model in torch, if it serves as reference: it takes the inputs of a call in their order, or is a
    decoder of transformers. `prompts` returns prompts and contexts for a decoder.
    """

    make: Callable[[], ov.Model]
    calls: Calls
    module: Any = None
    prompts: Callable[[np.random.RandomState], list[tuple[Array, Inputs]]] = lambda random: []

    @cached_property
    def model(self) -> ov.Model:
        """The OpenVINO model, cached, as `make` is slow."""
        return self.make()


def perturbed(module: Any, *examples: Any) -> Any:
    """Make biases and norm weights random: conversion would drop layers with their initial zeros and ones.

    Batch norms take their statistics from the examples, so that outputs still depend on inputs.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for norm in module.modules() if examples else ():
            if isinstance(norm, _BatchNorm):
                norm.momentum = 1.0
        if examples:
            module.train()(*examples)
    return module.eval()


def converted(module: Any, inputs: dict[str, tuple[Any, list[int]]], outputs: list[str]) -> ov.Model:
    """Convert a torch module; `inputs` maps a name to (example tensor, shape with -1 where dynamic)."""
    import torch

    types = {torch.float32: ov.Type.f32, torch.int64: ov.Type.i64}
    specs = [(ov.PartialShape(shape), types[example.dtype]) for example, shape in inputs.values()]
    examples = tuple(example for example, _ in inputs.values())
    model = ov.convert_model(module.eval(), example_input=examples, input=specs)
    for port, name in [*zip(model.inputs, inputs), *zip(model.outputs, outputs)]:
        port.get_tensor().set_names({name})
    return model


def outputs_of(module: Any, inputs: list[str], outputs: list[str]) -> Any:
    """Wrap a transformers model as a function of tensors: positional inputs, and a tuple of the named outputs."""
    import torch

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: Any) -> Any:
            result = self.module(**dict(zip(inputs, tensors)))
            return tuple(result[name] for name in outputs)

    return Tensors()


def function(module: Any) -> Callable[..., list[Array]]:
    """Wrap a torch module as a function of arrays that runs eagerly."""
    import torch

    def run(*arrays: Array) -> list[Array]:
        with torch.inference_mode():
            result = module(*(torch.from_numpy(a) for a in arrays))
        if isinstance(result, dict):  # named outputs of transformers
            result = tuple(result.values())
        return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]

    return run


def exported(
    module: Any, task: str, part: str = "model", *, fixed: Sequence[int] | None = None, **shapes: int
) -> ov.Model:
    """Export a transformers model, or a `part` of it, with optimum-intel.

    `fixed` becomes the shape of all inputs; `shapes` are the shapes of the inputs used for tracing.
    """
    from optimum.exporters.openvino import main_export

    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        out = Path(folder) / "exported"
        main_export(folder, out, task=task, library_name="transformers", **shapes)
        # A clone outlives the folder, whose weights file the model has mapped.
        model = ov.Core().read_model(out / f"openvino_{part}.xml").clone()
    if fixed:
        model.reshape({port: [*fixed] for port in model.inputs})
    return model


def normal(random: np.random.RandomState, *shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def tokens(random: np.random.RandomState, vocabulary: int, *shape: int) -> Array:
    return random.randint(0, vocabulary, shape).astype(np.int64)
