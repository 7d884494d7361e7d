"""A server as short as can be around openvino: ModelInfer of KServe v2 over gRPC, an infer request for each sequence.

    python bench/naive.py FOLDER        a repository of models: NAME/1/model.xml

The peer of `bench/serving.py` that shows what a server costs. It checks nothing, and has no limits.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openvino as ov
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

CONFIG = {
    "INFERENCE_NUM_THREADS": 1,
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


class Naive(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Inferences of sequences of the models in a repository."""

    def __init__(self, folder: Path) -> None:
        # Arrays are converted once here, before threads make inferences.
        ov.Tensor(np.zeros(1))
        core = ov.Core()
        self.models = {x.parts[-3]: core.compile_model(x, "CPU", CONFIG) for x in folder.glob("*/1/model.xml")}
        self.requests: dict[tuple[str, int], Any] = {}

    async def ModelInfer(self, message: Any, context: Any) -> Any:
        """Run an inference in a thread."""
        model, parameters = message.model_name, message.parameters
        key = model, parameters["sequence_id"].int64_param
        if parameters["sequence_start"].bool_param:
            self.requests[key] = self.models[model].create_infer_request()
        request = self.requests.pop(key) if parameters["sequence_end"].bool_param else self.requests[key]
        inputs = {
            x.name: np.frombuffer(data, triton_to_np_dtype(x.datatype)).reshape([*x.shape])
            for x, data in zip(message.inputs, message.raw_input_contents)
        }
        response = messages.ModelInferResponse(model_name=model, id=message.id)
        for port, y in (await asyncio.to_thread(request.infer, inputs)).items():
            response.outputs.add(name=port.any_name, datatype=np_to_triton_dtype(y.dtype), shape=y.shape)
            response.raw_output_contents.append(y.tobytes())
        return response


async def main(folder: Path) -> None:
    """Serve a repository on a free port of loopback, which is written to stderr, until the process is ended."""
    server = grpc.aio.server()
    services.add_GRPCInferenceServiceServicer_to_server(Naive(folder), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"gRPC on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
