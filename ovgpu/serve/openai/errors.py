"""Errors of OpenAI's protocol."""

from __future__ import annotations

from typing import Any

from ovgpu.serve.errors import ServeError, Status

TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
"""Type and code by status of HTTP. Others from 400 on are `invalid_request_error`, and from 500 on `server_error`."""


class FieldError(ServeError):
    """Error of a field of a request. ``param`` is its name, ``reason`` a code of the protocol."""

    def __init__(self, param: str, message: str, reason: str | None = None) -> None:
        super().__init__(Status.INVALID_ARGUMENT, message)
        self.param, self.reason = param, reason


class UnknownModelError(ServeError):
    """Error of a model that is not there."""

    param, reason = "model", "model_not_found"

    def __init__(self, message: str) -> None:
        super().__init__(Status.NOT_FOUND, message)


def code_of(error: ServeError) -> int:
    """Return the status of HTTP."""
    code: int = getattr(error, "code", error.status.value)
    return code


def body_of(error: ServeError) -> dict[str, Any]:
    """Return the JSON of an error."""
    status = code_of(error)
    kind, reason = TYPES.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "param": getattr(error, "param", None),
            "code": getattr(error, "reason", None) or reason,
        }
    }
