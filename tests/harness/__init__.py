"""The tests' harness: build a small IR, run it with ovgpu, let OpenVINO judge."""

from .cases import Case, In, across, check, const, given
from .ir import Net, feed, take
from .scenario import Infer, Reset, Scenario, SetState
from .sweep import sweep
from .tolerance import Sum, Tolerance
from .values import special_floats, special_integers, specials

__all__ = [
    "Case",
    "In",
    "Infer",
    "Net",
    "Reset",
    "Scenario",
    "SetState",
    "Sum",
    "Tolerance",
    "across",
    "check",
    "const",
    "feed",
    "given",
    "special_floats",
    "special_integers",
    "specials",
    "sweep",
    "take",
]
