"""Started inferences, which the device may run while the caller goes on."""

from __future__ import annotations

from ovgpu.request.direct_calls import DirectCall
from ovgpu.request.replays import Replay
from ovgpu.runtime.backend import Completion
from ovgpu.runtime.state import Snapshot


class Started:
    """Inference whose inputs are set. If it repeats an earlier one, it may be `launched`: enqueued on the device.

    ``call`` is the `DirectCall` that has made copies of its inputs.
    """

    __slots__ = ("after", "call", "completion", "replay", "seconds")

    def __init__(self, call: DirectCall | None) -> None:
        self.call = call
        self.replay: Replay | None = None
        self.completion: Completion | None = None
        self.after: Snapshot | None = None
        """The values of the variables after the inference."""
        self.seconds = 0.0
        """The time from the call to the launch."""

    @property
    def launched(self) -> bool:
        """True if the device runs the inference, or has run it."""
        return self.completion is not None
