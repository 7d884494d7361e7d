"""Load of a ContinuousBatchingPipeline, which `generation_served.py` starts with the interpreter of each engine.

It imports nothing but the engine and NumPy, as the other engine's environment need not have this project. One thread
adds requests of tokens when they are due, calls `step`, and reads what each request has. Times are those of this
thread: from when a request was due to its first token (TTFT), and between its tokens (TPOT).
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TENSORS = {"ovgpu.genai": "ovgpu", "openvino_genai": "openvino"}
CHECKED = 16  # prompts whose tokens are compared, all at a time
IDLE_SECONDS = 1e-4


class Request:
    """A prompt of tokens [1, n], i64, which is due at a time after the start, and its number of new tokens."""

    def __init__(self, tokens: Any, new: int, due: float = 0.0) -> None:
        self.tokens, self.new, self.due = tokens, new, due
        self.handle: Any = None
        self.generated: list[int] = []
        self.times: list[float] = []  # of the tokens

    def read(self, now: float) -> bool:
        """Take the tokens that the request has. Return whether it has ended."""
        while self.handle.can_read():
            for output in self.handle.read().values():
                self.generated += output.generated_ids
                self.times += [now] * len(output.generated_ids)
        return len(self.generated) >= self.new


class Server:
    """A pipeline that runs requests."""

    def __init__(self, engine: str, folder: str, device: str) -> None:
        self._genai = importlib.import_module(engine)
        self._tensor = importlib.import_module(TENSORS[engine]).Tensor
        self._pipeline = self._genai.ContinuousBatchingPipeline(folder, self._genai.SchedulerConfig(), device, F32)
        self._number = 0

    def run(self, requests: Sequence[Request], most: int | None = None) -> float:
        """Run requests, at most ``most`` at a time, and return the seconds that it took."""
        waiting, running = list(requests), list[Request]()
        start = time.perf_counter()
        while waiting or running:
            now = time.perf_counter() - start
            while waiting and waiting[0].due <= now and (most is None or len(running) < most):
                request = waiting.pop(0)
                if most is not None:
                    request.due = now
                self._add(request)
                running.append(request)
            if not running:
                time.sleep(IDLE_SECONDS)
                continue
            self._pipeline.step()
            now = time.perf_counter() - start
            running = [request for request in running if not request.read(now)]
        return time.perf_counter() - start

    def _add(self, request: Request) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = request.new, True
        request.handle = self._pipeline.add_request(self._number, self._tensor(request.tokens), config)
        self._number += 1


def requests_of(count: int, settings: dict[str, Any], seed: int, rate: float | None = None) -> list[Request]:
    """Return requests with random tokens, and random times of a Poisson process with ``rate`` per second."""
    random = np.random.default_rng(seed)
    least, most = settings["prompt"]
    prompts = [random.integers(3, settings["vocabulary"], (1, random.integers(least, most + 1))) for _ in range(count)]
    gaps = np.zeros(count) if rate is None else random.exponential(1 / rate, count)
    least, most = settings["new"]
    return [
        Request(tokens, int(random.integers(least, most + 1)), float(due))
        for tokens, due in zip(prompts, np.cumsum(gaps))
    ]


def figures(requests: Sequence[Request], seconds: float, processor: float) -> dict[str, float]:
    """Return tokens per second, processor time per token, and percentiles of TTFT and TPOT, in milliseconds."""
    count = sum(len(request.generated) for request in requests)
    first = [1e3 * (request.times[0] - request.due) for request in requests]
    each = [1e3 * (r.times[-1] - r.times[0]) / (len(r.times) - 1) for r in requests if len(r.times) > 1]
    found = {"tokens_per_second": count / seconds, "processor_ms": 1e3 * processor / count}
    for name, values in (("ttft", first), ("tpot", each)):
        found |= {f"{name}_p{p}": float(np.percentile(values, p)) for p in (50, 99)}
    return found


def main() -> None:
    """Run the settings in the first argument, as JSON, and print the figures of each load."""
    settings = json.loads(sys.argv[1])
    server = Server(settings["engine"], settings["folder"], settings["device"])
    checked = requests_of(CHECKED, settings, seed=1)
    server.run(checked, CHECKED)  # also warms up: memory of caches grows
    result: dict[str, Any] = {"tokens": [request.generated for request in checked]}
    for load in settings["loads"]:
        requests = requests_of(load["requests"], settings, seed=2, rate=load.get("rate"))
        processor = time.process_time()
        seconds = server.run(requests, load.get("concurrent"))
        result[load["name"]] = figures(requests, seconds, time.process_time() - processor)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
