"""Build hook: the files of a wheel beside the package that read OVGPU_INSTALL, OVGPU_INSTALL_AS and OVGPU_REPLACE. An
editable install has none.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "ovgpu/integrations/openvino"


class WheelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {
                f"{FOLDER}/startup.pth": "ovgpu.pth",
                f"{FOLDER}/startup.py": "_ovgpu_startup.py",
            }
