"""The version of ovgpu, and what `Core.get_versions` tells of a device."""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.1.0"


def get_version() -> str:
    """The version of ovgpu."""
    return __version__


@dataclass(frozen=True)
class Version:
    """The version of a device's backend, with openvino's attributes."""

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
