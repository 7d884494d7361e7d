"""Class Scheduler: rule by which noise is taken from images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.enums import Numbered
from ovgpu.genai.files import read_object
from ovgpu.genai.images.denoising import (
    DDIMSettings,
    Denoising,
    EulerAncestralSettings,
    EulerSettings,
    LCMSettings,
    PNDMSettings,
)
from ovgpu.genai.images.settings import Settings

KINDS: dict[str, type[Settings]] = {
    "DDIMScheduler": DDIMSettings,
    "EulerAncestralDiscreteScheduler": EulerAncestralSettings,
    "EulerDiscreteScheduler": EulerSettings,
    "LCMScheduler": LCMSettings,
    "LMSDiscreteScheduler": DDIMSettings,  # as in openvino_genai
    "PNDMScheduler": PNDMSettings,
}


class Scheduler:
    """Rule by which noise is taken from images, with its settings. `Scheduler.from_config` makes one."""

    class Type(Numbered):
        """Kind of a scheduler; AUTO is that of the file. LMS_DISCRETE is another name of DDIM."""

        AUTO = 0
        LCM = 1
        DDIM = 2
        EULER_DISCRETE = 3
        FLOW_MATCH_EULER_DISCRETE = 4
        PNDM = 5
        EULER_ANCESTRAL_DISCRETE = 6
        LMS_DISCRETE = 2

    def __init__(self, settings: Settings) -> None:
        if not isinstance(settings, Settings):
            raise TypeError("Scheduler.from_config makes schedulers")
        self._settings = settings

    @staticmethod
    def from_config(
        scheduler_config_path: str | bytes | os.PathLike[str], scheduler_type: Type = Type.AUTO
    ) -> Scheduler:
        """Return the scheduler of a scheduler_config.json. ``scheduler_type`` may choose another kind.

        Raises: RuntimeError for a file that cannot be read, and for a kind or settings that are not supported;
        TypeError for arguments of another type.
        """
        if not isinstance(scheduler_config_path, (str, bytes, os.PathLike)):
            raise TypeError(f"scheduler_config_path is the path of a file, not {scheduler_config_path!r}")
        if not isinstance(scheduler_type, Scheduler.Type):
            raise TypeError(f"scheduler_type is a Scheduler.Type, not {scheduler_type!r}")
        path = Path(os.fsdecode(scheduler_config_path))
        values = read_object(path)
        name = values.get("_class_name") if scheduler_type is Scheduler.Type.AUTO else NAMES[scheduler_type]
        if not isinstance(name, str) or name not in KINDS:
            raise Error(f"{path}: the scheduler {name} is not supported, only {', '.join(KINDS)}")
        settings = KINDS[name](path)
        with np.errstate(all="ignore"):
            settings.check()
        return Scheduler(settings)

    def _begin(self, steps: int, strength: float) -> Denoising:
        """Return the state of a generation. Raises: Error for steps or settings that are not supported."""
        with np.errstate(all="ignore"):  # settings may make no sense, and give infinite numbers
            denoising: Denoising = self._settings.rule(self._settings, steps, strength)
        return denoising


NAMES = {
    Scheduler.Type.LCM: "LCMScheduler",
    Scheduler.Type.DDIM: "DDIMScheduler",
    Scheduler.Type.EULER_DISCRETE: "EulerDiscreteScheduler",
    Scheduler.Type.FLOW_MATCH_EULER_DISCRETE: "FlowMatchEulerDiscreteScheduler",
    Scheduler.Type.PNDM: "PNDMScheduler",
    Scheduler.Type.EULER_ANCESTRAL_DISCRETE: "EulerAncestralDiscreteScheduler",
}
"""Names of the kinds in files."""
