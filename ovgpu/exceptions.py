"""Exceptions that openvino's builders of graphs raise: openvino's own classes where it is installed.

ovgpu itself raises those of `ovgpu.errors`.
"""

from __future__ import annotations

from ovgpu._util import openvino_package


class OVError(Exception):
    """Base class of these exceptions."""


class UserInputError(OVError):
    """Error of an input that is not what was expected."""


class OVTypeError(OVError, TypeError):
    """Error of a value of a wrong type."""


_package = openvino_package.package()
if _package is not None:
    for _name in ("OVError", "UserInputError", "OVTypeError"):
        globals()[_name] = getattr(_package.exceptions, _name)
