"""The models that are mutated: those of the tests of ops, control flow and state, and the catalogue's whole models."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lxml import etree

import ovgpu as ov
from tests import conformance
from tests.harness import Case, Scenario, Tolerance
from tests.harness.elements import name_of
from tests.harness.judge import Value
from tests.harness.models.drive import DATA
from tests.harness.private import private
from tests.harness.scenario import Infer
from tests.harness.tolerance import Tol
from tests.models.test_models import EXPECTED, NAMES

CALLS = 3  # inferences of one request, at most


@dataclass(frozen=True)
class Subject:
    """A model, and the inputs of each inference in the order of its parameters. ``judged`` is False if the tests of an
    operation say that OpenVINO's plugin errs on it."""

    name: str
    xml: bytes
    weights: bytes
    calls: Sequence[Sequence[Value]]
    tol: Tol = None
    judged: bool = True


@dataclass
class Corpus:
    """Subjects by group (op version, "scenarios" or "models"), and attribute values and layers of their documents."""

    groups: dict[str, dict[str, Callable[[], Subject]]] = field(default_factory=lambda: defaultdict(dict))
    words: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # values by name of an attribute
    layers: dict[str, etree._Element] = field(default_factory=dict)  # one by op version and numbers of ports


def pick(rng: random.Random, items: Iterable[str]) -> str:
    """Return one of the items by rendezvous hashing: a new item changes few choices, so a seed keeps its mutants."""
    salt = rng.getrandbits(32)
    return max(items, key=lambda item: (zlib.crc32(f"{salt} {item}".encode()), item))


def corpus() -> Corpus:
    """Return all subjects."""
    found = Corpus()
    for folder in conformance.FOLDERS:
        for case in conformance.tables(*conformance.modules(folder)):
            found.groups[case.group][case.name] = partial(of_test, case)
            for element in etree.fromstring(case.net.build()[0]).iter():
                if element.tag == "layer":
                    ports = [len(element.findall(f"{side}/port")) for side in ("input", "output")]
                    found.layers.setdefault(f"{element.get('type')} {element.get('version')} {ports}", element)
                elif element.tag not in ("port", "edge"):
                    for name, value in element.attrib.items():
                        found.words[name].add(value)
    for name in NAMES:
        found.groups["models"][name] = partial(of_catalogue, name)
    return found


def of_test(test: Case | Scenario, valued: bool = False) -> Subject:
    """Return the model of a case or a scenario; that of a ``valued`` one is for ovgpu alone."""
    if isinstance(test, Case):
        calls = [test.parameters(test.arrays())]
    else:
        infers = [step for step in test.steps if isinstance(step, Infer)]
        calls = [list(test.values(step).values()) for step in infers[:CALLS]]
    known = getattr(test, "expect", None) is not None or bool(getattr(test, "specified", ()))
    judged = test.oracle in ("auto", "cpu") and not known
    xml, weights = test.net.build()
    return Subject(test.name, private(xml) if valued else xml, weights, calls, test.tol, judged)


def of_catalogue(name: str) -> Subject:
    """Return a model of the catalogue."""
    folder, expected = DATA / name, EXPECTED[name]
    model: Any = ov.Core().read_model(folder / "model.xml")
    calls = [
        [(array, name_of(array.dtype)) for port in model.inputs for array in [call.inputs[port.any_name]]]
        for call in expected.calls[:CALLS]
    ]
    return Subject(
        name,
        (folder / "model.xml").read_bytes(),
        (folder / "model.bin").read_bytes(),
        calls,
        Tolerance(of_largest=expected.tolerance),
    )
