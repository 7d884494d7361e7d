"""Versions of ovgpu and of the device backends that `Core.get_versions` reports."""

from __future__ import annotations

from dataclasses import dataclass

OWN = "0.1.0"
"""The version of ovgpu itself."""

OPENVINO = "2026.4.1"
"""The version of OpenVINO whose API ovgpu follows."""

__version__ = f"{OPENVINO}-0-ovgpu-{OWN}"  # programs parse what is before the second hyphen as a version


def get_version() -> str:
    """Return the version of OpenVINO that ovgpu follows, and its own: such as "2026.4.1-0-ovgpu-0.1.0".

    Programs read OpenVINO's version at the beginning. `ovgpu.version.OWN` is ovgpu's own.
    """
    return __version__


@dataclass(frozen=True)
class Version:
    """Version of a device's backend, with the attributes of OpenVINO's class."""

    description: str
    build_number: str = __version__

    @property
    def major(self) -> int:
        """First part of the version."""
        return self._number(0)

    @property
    def minor(self) -> int:
        """Second part of the version."""
        return self._number(1)

    @property
    def patch(self) -> int:
        """Third part of the version."""
        return self._number(2)

    def _number(self, index: int) -> int:
        return int(self.build_number.split("-")[0].split(".")[index])

    def __repr__(self) -> str:
        return f"<Version: {self.build_number} {self.description}>"
