"""Versions of ovgpu and of the device backends that `Core.get_versions` reports."""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.1.0"


def get_version() -> str:
    """Return the version of ovgpu, such as "0.1.0"."""
    return __version__


@dataclass(frozen=True)
class Version:
    """Version of a device's backend, with the attributes of OpenVINO's class."""

    description: str
    build_number: str = __version__

    @property
    def major(self) -> int:
        return int(self.build_number.split(".")[0])

    @property
    def minor(self) -> int:
        return int(self.build_number.split(".")[1])

    @property
    def patch(self) -> int:
        return int(self.build_number.split(".")[2])

    def __repr__(self) -> str:
        return f"<Version: {self.build_number} {self.description}>"
