"""Classes of the user API, Core, CompiledModel, InferRequest and AsyncInferQueue, and the settings and devices behind
them."""

from ovgpu.api import evaluate  # noqa: F401  # sets `Model.evaluate`
