"""Log settings, an extension of Triton: clients choose the levels of messages that are logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ovgpu.serve.errors import ServeError, Status, invalid

NO_TRACE = "trace settings are not supported: spans go where OpenTelemetry is set up to send them"
LEVELS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
FIXED = {"log_file": "", "log_format": "default"}  # settings with one value: messages go to stderr
VERBOSE = "log_verbose_level"

log = logging.getLogger("ovgpu.serve")


class LogSettings(logging.Filter):
    """Filter of a log's handler: levels can be switched off one by one, as in Triton.

    With a ``log_verbose_level`` above 0, messages of the level DEBUG are logged as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._off = set[int]()
        self._verbose = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is logged. Levels in between count as the next lower one."""
        return not any(level <= record.levelno < level + 10 for level in self._off)

    def values(self) -> dict[str, Any]:
        """Return all settings by name."""
        levels = {name: level not in self._off for name, level in LEVELS.items()}
        return {"log_file": FIXED["log_file"], **levels, VERBOSE: self._verbose, "log_format": FIXED["log_format"]}

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change settings; None leaves one as it is. Raise ServeError for wrong ones, and then change none."""
        changes = {name: value for name, value in changes.items() if value is not None}
        for name, value in changes.items():
            if name in FIXED:
                if value != FIXED[name]:
                    raise ServeError(Status.UNIMPLEMENTED, f"{name} cannot be changed: it is '{FIXED[name]}'")
            elif name == VERBOSE:
                if type(value) is not int or not 0 <= value < 2**32:
                    raise invalid(f"{name} {value!r} is no number from 0 on")
            elif name not in LEVELS:
                raise invalid(f"there is no setting '{name}'; there are {', '.join(self.values())}")
            elif not isinstance(value, bool):
                raise invalid(f"{name} {value!r} is neither true nor false")
        for name, level in LEVELS.items():
            if name in changes:
                (self._off.discard if changes[name] else self._off.add)(level)
        if VERBOSE in changes:
            self._verbose = changes[VERBOSE]
            log.setLevel(logging.DEBUG if self._verbose else logging.INFO)


settings = LogSettings()
"""Settings of the log of this process."""
