"""Record of calls: a line of JSON for each in the access log, and a span where OpenTelemetry is installed."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from ovgpu.serve.errors import ServeError, Status, public
from ovgpu.serve.tokens import caller

MAX_FIELD = 500  # characters of a field in the access log: clients make up names and ids

answered = Counter[tuple[str, str, str]]()
"""Calls that were answered, by interface, method and status."""

log = logging.getLogger(__name__)
access = logging.getLogger("ovgpu.serve.access")

try:
    from opentelemetry import propagate, trace

    has_opentelemetry = True
except ImportError:
    has_opentelemetry = False


def tracer() -> Any:
    """Return the tracer of spans, or None if OpenTelemetry is not installed or not set up."""
    if not has_opentelemetry or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("ovgpu.serve")


class Call:
    """A call of a client. ``status`` and the other attributes are set while it is answered."""

    def __init__(self, interface: str, method: str, peer: str) -> None:
        self.interface, self.method, self.peer = interface, method, peer
        self.model = self.version = self.id = ""
        self.sequence: int | str = ""
        self.status = Status.OK
        self.error = ""

    def fail(self, error: Exception) -> ServeError:
        """Set the call's status from an error. Return the error as the client may see it, and log internal ones."""
        answer = public(error)
        self.status, self.error = answer.status, str(answer)
        if answer.status is Status.INTERNAL:
            log.error("%s of model '%s' failed", self.method, self.model, exc_info=error)
        error.__traceback__ = None  # its frames hold the body and the error itself: the cycle would keep the body
        return answer


class recorded:
    """Context for a call, which is logged at its end. Its span continues the trace in ``headers()``."""

    __slots__ = ("_call", "_span", "_started")

    def __init__(self, interface: str, method: str, peer: str, headers: Callable[[], Mapping[str, str]]) -> None:
        self._call = Call(interface, method, peer)
        spans = tracer()
        self._span = None if spans is None else _span(spans, self._call, headers())

    def __enter__(self) -> Call:
        self._started = time.perf_counter()
        if self._span is not None:
            self._span.__enter__()
        return self._call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        call = self._call
        if self._span is not None:
            self._span.__exit__(kind, error, traceback)
        answered[call.interface, call.method, call.status.name] += 1
        if access.isEnabledFor(logging.INFO):
            access.info(_line(call, time.perf_counter() - self._started))


def _line(call: Call, seconds: float) -> str:
    fields = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "interface": call.interface,
        "method": call.method,
        "peer": call.peer,
        "model": call.model,
        "version": call.version,
        "id": call.id,
        "sequence": call.sequence,
        "token": "" if (token := caller.get()) is None else token.id,
        "status": call.status.name,
        "ms": round(1e3 * seconds, 3),
        "error": call.error,
    }
    return json.dumps(
        {name: value[:MAX_FIELD] if isinstance(value, str) else value for name, value in fields.items() if value != ""}
    )


@contextmanager
def _span(spans: Any, call: Call, headers: Mapping[str, str]) -> Iterator[None]:
    with spans.start_as_current_span(
        f"{call.interface} {call.method}", propagate.extract(dict(headers)), kind=trace.SpanKind.SERVER
    ) as span:
        try:
            yield
        finally:
            span.set_attributes({"model": call.model, "version": call.version, "status": call.status.name})
            if call.status.value >= 500:
                span.set_status(trace.StatusCode.ERROR, call.error)
