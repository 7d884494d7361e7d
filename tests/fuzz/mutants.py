"""Mutants: models of the corpus after a few random changes, which the same seeds reproduce."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from lxml import etree

from . import documents
from .corpus import Corpus, Subject, pick
from .graphs import CHANGES, Draft

MODELS = 0.1  # the share of whole models
ATTEMPTS = 20  # to find a change that applies


def draw(corpus: Corpus, seed: str) -> tuple[Subject, list[int]]:
    """Return a subject, and the seeds of the changes to make."""
    rng = random.Random(seed)
    changes = [rng.getrandbits(32) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))]
    group = corpus.groups["models" if rng.random() < MODELS else pick(rng, corpus.groups)]
    return group[pick(rng, group)](), changes


def mutated(subject: Subject, changes: Sequence[int], corpus: Corpus) -> Subject:
    """Return the subject after these changes."""
    draft = Draft(etree.fromstring(subject.xml), bytearray(subject.weights), corpus)
    names = []
    for seed in changes:
        rng = random.Random(seed)
        if rng.random() < 0.03:  # no further changes: they need a well-formed document
            corrupt = rng.choice([documents.structure, documents.text])
            xml = corrupt(etree.tostring(draft.root), rng)
            return replace(
                subject, xml=xml, weights=bytes(draft.weights), name=_named(subject, [*names, corrupt.__name__])
            )
        for _ in range(ATTEMPTS):
            function = rng.choices([each for _, each in CHANGES], [weight for weight, _ in CHANGES])[0]
            if function(draft, rng):
                names.append(function.__name__)
                break
    return replace(subject, xml=etree.tostring(draft.root), weights=bytes(draft.weights), name=_named(subject, names))


def _named(subject: Subject, changes: Sequence[str]) -> str:
    return f"{subject.name}: {', '.join(changes)}"
