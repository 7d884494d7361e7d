"""Comparison of ovgpu and OpenVINO on a mutant: they agree, differ for a known cause, or there is a finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lxml import etree

from tests.harness.elements import pack
from tests.harness.tolerance import compare_all

from .corpus import Subject
from .explained import DROPPED_NAN, explanation
from .inference import Outcome, fed, openvino_plugin, openvino_reference, ovgpu_on
from .workers import Limits, Worker

SAME, BOTH_REFUSE, LARGE = "both answer", "both refuse", "too large"
ALONE, UNSTEADY, KNOWN = "ovgpu alone answers", "OpenVINO contradicts itself", "known difference"
GOOD = (SAME, BOTH_REFUSE, LARGE, ALONE, UNSTEADY, KNOWN)
FINDINGS = ("bare", "died", "hung", "refused", "differs")
"""An exception that is not meant for users, a process that died or hung; ovgpu refuses what OpenVINO computes, or
computes something else."""

SLOW_SECONDS = 0.03  # on the first device; the emulator may take too long for slower models
MANY_ELEMENTS = 20_000  # in the inputs; the emulator may take too long for more


@dataclass(frozen=True)
class Verdict:
    """One of `GOOD` or `FINDINGS`, with an explanation and the device."""

    kind: str
    text: str = ""
    device: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD

    def resembles(self, other: Verdict) -> bool:
        """Return whether two findings are likely one fault, seen on models of different size."""
        same = self.signature == other.signature or self.kind in ("differs", "died", "hung")
        return not self.good and self.kind == other.kind and same

    @property
    def signature(self) -> str:
        """A text that is equal for findings that are likely one fault."""
        text = re.sub(r"\(layer .*|'[^']*'", "", self.text.strip().partition("\n")[0])
        return f"{self.kind} {re.sub(r'-?[0-9][-+.e0-9]*', '0', text)[:120]}"


class Court:
    """Workers for ovgpu on devices, and for OpenVINO: its plugin, its plugin with other stray bytes in new memory, and
    its reference implementations."""

    def __init__(self, devices: Sequence[str], limits: Limits) -> None:
        self.ovgpu = {device: Worker(limits, ovgpu_on, device) for device in devices}
        self.plugin = Worker(limits, openvino_plugin)
        self.perturbed = Worker(limits, openvino_plugin, True)
        self.reference = Worker(limits, openvino_reference)

    def close(self) -> None:
        """End all processes."""
        for worker in (*self.ovgpu.values(), self.plugin, self.perturbed, self.reference):
            worker.close()

    def judge(self, subject: Subject) -> Verdict:
        """Run a mutant everywhere; return the first verdict that is a finding, or the first one."""
        workers = [self.plugin, *self.ovgpu.values()]
        for worker in workers:
            worker.send(subject)
        wanted, *found = [worker.receive() for worker in workers]
        given = fed(found[0].inputs, subject.calls[0] if subject.calls else []) or []
        large = sum(array.size for array, _ in given) > MANY_ELEMENTS
        verdicts: list[Verdict] = []
        for device, outcome in zip(self.ovgpu, found):
            if verdicts and found[0].kind == "refused" and outcome.kind in ("refused", "answered"):
                break  # kernels do not check values, but the CPU does: its verdict counts
            if verdicts and DROPPED_NAN in verdicts[0].text and outcome.kind == "answered":
                break  # a Relu that cuDNN or cuBLASLt computes drops NaN as well, others do not
            slow = outcome.kind == "hung" and (wanted.kind == "hung" or found[0].seconds > SLOW_SECONDS or large)
            verdict = Verdict(LARGE) if slow else self._verdict(subject, outcome, wanted)
            verdicts.append(replace(verdict, device=device))
            if not verdicts[-1].good:
                return verdicts[-1]
        return verdicts[0]

    def _verdict(self, subject: Subject, found: Outcome, wanted: Outcome) -> Verdict:
        if found.kind in ("bare", "died"):
            return Verdict(found.kind, found.text)
        if found.kind == "hung":
            return explained(Verdict("hung", found.text), subject)
        if "large" in (found.kind, wanted.kind):
            return Verdict(LARGE)
        if found.kind == "refused":
            return self._refused(subject, found, wanted) if wanted.kind == "answered" else Verdict(BOTH_REFUSE)
        if wanted.kind != "answered":
            return Verdict(ALONE)
        difference = differ(found, wanted, subject)
        return self._differs(subject, found, wanted, difference) if difference else Verdict(SAME)

    def _refused(self, subject: Subject, found: Outcome, wanted: Outcome) -> Verdict:
        """Ask OpenVINO again with constant inputs: it then finds errors in some models."""
        if self.plugin.ask(frozen(subject, wanted)).kind != "answered":
            return Verdict(BOTH_REFUSE, "OpenVINO only when it knows the inputs")
        return explained(Verdict("refused", found.text), subject)

    def _differs(self, subject: Subject, found: Outcome, wanted: Outcome, difference: str) -> Verdict:
        if not subject.judged:
            return Verdict(KNOWN, "the test of this operation says that the plugin errs")
        reference = self.reference.ask(subject)
        if reference.kind == "answered":
            if not differ(found, reference, subject):
                return Verdict(UNSTEADY, "the reference agrees with ovgpu")
            difference += f"; the reference {'gives a third answer' if differ(wanted, reference, subject) else 'too'}"
        again = self.perturbed.ask(subject)
        if again.kind != "answered" or differ(again, wanted, subject):
            return Verdict(UNSTEADY, "the plugin's answer depends on stray memory")
        once = replace(subject, calls=subject.calls[:1])
        static = self.plugin.ask(fixed(once, wanted))
        if static.kind != "answered":
            return Verdict(UNSTEADY, "the plugin refuses the model with static shapes")
        if not differ(replace(found, outputs=found.outputs[:1]), static, subject):
            return Verdict(UNSTEADY, "the plugin agrees with static shapes")
        constant = self.plugin.ask(frozen(once, wanted))
        if constant.kind == "answered" and not differ(replace(found, outputs=found.outputs[:1]), constant, subject):
            return Verdict(UNSTEADY, "the plugin agrees with constant inputs")
        if found.inputs != wanted.inputs:
            difference += f"; the inputs are {found.inputs} and {wanted.inputs}"
        return explained(Verdict("differs", difference), subject)


def differ(found: Outcome, wanted: Outcome, subject: Subject) -> str:
    """Return how the outputs differ, or an empty string."""
    try:
        with np.errstate(all="ignore"):
            for number, (some, others) in enumerate(zip(found.outputs, wanted.outputs, strict=True)):
                compare_all(f"inference {number}", [(e.array, e.type) for e in some], others, subject.tol)
    except AssertionError as e:
        return str(e)
    return ""


def explained(verdict: Verdict, subject: Subject) -> Verdict:
    """Return the verdict, or a good one if its cause is known."""
    why = explanation(verdict.kind, verdict.text, subject)
    return Verdict(KNOWN, f"{verdict.kind}: {why}") if why else verdict


def frozen(subject: Subject, outcome: Outcome) -> Subject:
    """Return the model with its inputs replaced by constants, which have the values of the first inference."""
    weights = bytearray(subject.weights)

    def freeze(layer: etree._Element, array: Any, kind: str) -> dict[str, str]:
        nonlocal weights
        layer.set("type", "Const")
        data = pack(array, kind)
        weights += data
        return {"offset": str(len(weights) - len(data)), "size": str(len(data))}

    found = _with_inputs(subject, outcome, freeze)
    return replace(found, weights=bytes(weights))


def fixed(subject: Subject, outcome: Outcome) -> Subject:
    """Return the model with static input shapes, which are those of the first inference."""
    return _with_inputs(subject, outcome, lambda *_: {})


def _with_inputs(subject: Subject, outcome: Outcome, change: Callable[..., dict[str, str]]) -> Subject:
    """Return the model with other inputs: ``change`` is given each layer and its value, and returns attributes."""
    root = etree.fromstring(subject.xml, etree.XMLParser(recover=True, huge_tree=True))
    if root is None:
        return subject
    values = fed(outcome.inputs, subject.calls[0] if subject.calls else []) or []
    for layer, (array, kind) in zip(root.findall("layers/layer[@type='Parameter']"), values):
        for old in layer.findall("data"):
            layer.remove(old)
        shape = ",".join(map(str, array.shape))
        layer.insert(0, etree.Element("data", {"element_type": kind, "shape": shape} | change(layer, array, kind)))
    return replace(subject, xml=etree.tostring(root))
