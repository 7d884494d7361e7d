"""An instance of a model without Triton: it reads config.pbtxt, loads model.py and calls it as the server does."""

from __future__ import annotations

import asyncio
import json
import runpy
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.integrations.triton import stand_in

SECONDS = 60.0  # that a test waits at most

Arrays = Mapping[str, Any]


def parsed(folder: Path) -> Any:
    """Return the message ModelConfig in config.pbtxt of a model."""
    return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


class Instance:
    """A loaded version of a model."""

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        self._outputs = [port.name for port in config.output]
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def request(
        self,
        arrays: Arrays,
        id: int | str = 0,
        start: bool = False,
        end: bool = False,
        outputs: Sequence[str] | None = None,
    ) -> stand_in.InferenceRequest:
        """Return a request with copies of arrays on the host, or with arrays on a device."""
        tensors = [
            stand_in.Tensor(name, np.array(array) if isinstance(array, (np.ndarray, np.generic)) else array)
            for name, array in arrays.items()
        ]
        return stand_in.InferenceRequest(tensors, list(outputs or self._outputs), id, start + 2 * end)

    def execute(self, requests: Sequence[stand_in.InferenceRequest]) -> list[stand_in.InferenceResponse]:
        """Run requests and check the number of responses. The inputs are overwritten: Triton deletes them."""
        responses = self.model.execute(list(requests))
        assert isinstance(responses, list) and len(responses) == len(requests)
        assert all(isinstance(response, stand_in.InferenceResponse) for response in responses)
        for request in requests:
            for tensor in request.inputs():
                if tensor.is_cpu() and tensor.array.dtype != object:
                    tensor.array[...] = 77
        return responses

    def infer(self, arrays: Arrays, **options: Any) -> dict[str, Any]:
        """Run a request alone, and return its outputs by name. Raise the error of the response."""
        return outputs(self.execute([self.request(arrays, **options)])[0])

    def stream(self, requests: Sequence[stand_in.InferenceRequest]) -> None:
        """Run requests of a decoupled model. Their senders have the responses, at once or later."""
        coroutine = self.model.execute(list(requests))
        assert asyncio.iscoroutine(coroutine)
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @staticmethod
    def answered(request: stand_in.InferenceRequest) -> list[stand_in.InferenceResponse]:
        """Wait for the last response to a streamed request, and return all."""
        ends = time.monotonic() + SECONDS
        while not request.sender.closed:
            assert time.monotonic() < ends, "no last response"
            time.sleep(0.001)
        return request.sender.responses

    def finalize(self) -> None:
        self.model.finalize()
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def loaded(
    folder: Path, version: int = 1, kind: str = "CPU", parameters: Mapping[str, str] | None = None
) -> Iterator[Instance]:
    """Load a version from a model's folder, with further parameters in the configuration; finalize it at the end."""
    config = parsed(folder)
    for key, value in (parameters or {}).items():
        config.parameters[key].string_value = value
    model = runpy.run_path(str(folder / str(version) / "model.py"))["TritonPythonModel"]()
    model.initialize(
        {
            "model_config": json.dumps(
                json_format.MessageToDict(
                    config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
            ),
            "model_instance_kind": kind,
            "model_instance_device_id": "0",
            "model_instance_name": f"{config.name}_0",
            "model_repository": str(folder),
            "model_version": str(version),
            "model_name": config.name,
        }
    )
    instance = Instance(model, config)
    try:
        yield instance
    finally:
        instance.finalize()


def outputs(response: stand_in.InferenceResponse) -> dict[str, Any]:
    """Return the outputs of a response by name. Raise its error."""
    error = response.error()
    if error is not None:
        raise error
    return {tensor.name(): tensor.array for tensor in response.output_tensors()}
