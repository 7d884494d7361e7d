"""The classes that users hold: Core, CompiledModel, InferRequest, AsyncInferQueue, and the settings and devices behind
them."""
