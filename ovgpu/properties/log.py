"""Properties of logging."""

from __future__ import annotations

from ._property import Property, PropertyEnum, instance


class Level(PropertyEnum):
    """Level of the log."""

    NO = -1
    ERR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3
    TRACE = 4


level = Property("LOG_LEVEL", instance(Level))
