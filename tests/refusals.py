"""OpenVINO's answers to the models that its CPU plugin does not judge, and to the findings of the fuzzer.

    python -m tests.refusals                     all of them
    python -m tests.refusals Softmax TopK-11     those of these operations

The command prints how OpenVINO's CPU plugin answers the error cases of each operation and those with values of their
own, and then the models that it computes while ovgpu refuses them, with both answers. OpenVINO runs in a watched
process. The command fails if a model ends that process, or if an answer takes longer than a limit: no test may hold
such a model.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import chain

from rich.console import Console
from rich.progress import track

from ovgpu.cli._print import console, table
from tests.conformance import FOLDERS, labels, modules
from tests.fuzz import findings, inference
from tests.fuzz.corpus import Subject, of_test
from tests.fuzz.inference import Outcome
from tests.fuzz.workers import Limits, Worker
from tests.harness import judge
from tests.harness.scenario import Scenario

READING, LATER, COMPUTES, DIES = ANSWERS = ("refuses on reading", "refuses later", "computes", "dies")
FINDINGS = "findings"  # the group of the fuzzer's findings, of which ovgpu refuses some
LIMITS = Limits()
BATCH = 20  # questions to a process
REPEATS = 5
SHOWN = 4  # elements of an output that are printed


@dataclass(frozen=True)
class Question:
    """A model for OpenVINO. ``refused`` says whether ovgpu refuses it."""

    group: str
    name: str
    refused: bool
    subject: Callable[[], Subject]


def questions(names: Sequence[str] = ()) -> Iterator[Question]:
    """Yield the cases of the operations with these names, such as TopK or TopK-11; without names everything."""
    for module in chain.from_iterable(map(modules, FOLDERS)):
        tests = {id(test): test.cases for test in vars(module).values() if hasattr(test, "cases")}
        for case in chain.from_iterable(tests.values()):
            group = case.group if isinstance(case, Scenario) else labels(case.op, case.version)[1]
            asked = not case.judged or case.valued or case.oracle == "evaluate"
            if asked and (not names or group in names or group.partition("-")[0] in names):
                yield Question(group, case.name, not case.judged, partial(of_test, case, case.judged and case.valued))
    if not names or FINDINGS in names:
        for path in sorted(findings.FOLDER.glob("*.xml")):
            wanted, subject = findings.load(path)
            refused = wanted not in (findings.SAME, findings.ANSWERS)
            yield Question(FINDINGS, path.stem, refused, partial(lambda subject: subject, subject))


def plugin() -> Callable[[Subject], Outcome]:
    """Return a function that answers with OpenVINO's CPU plugin: one of `ANSWERS`, and an error or outputs. It reads,
    compiles and infers a model several times, since memory errors do not show every time."""
    judge.openvino()

    def answer(subject: Subject) -> Outcome:
        found = once(subject)
        for _ in range(REPEATS if found.kind != READING else 0):
            found = once(subject)
        return found

    return answer


def once(subject: Subject) -> Outcome:
    """Read, compile and infer a model with a new request."""
    try:
        model = judge.core().read_model(subject.xml, subject.weights)
    except Exception as error:
        return Outcome(READING, str(error))
    try:
        request = judge.core().compile_model(model, "CPU", judge.CONFIG).create_infer_request()
        ports = [(p.get_element_type().get_type_name(), str(p.get_partial_shape())) for p in model.inputs]
        found = []
        for call in subject.calls:
            inputs = inference.fed(ports, call)
            if inputs is None:
                return Outcome(LATER, "the inputs are too large to run")
            found = judge.infer(judge.openvino(), request, inputs)
    except Exception as error:
        return Outcome(LATER, str(error))
    shown = (f"{list(array.shape)} {array.ravel()[:SHOWN].tolist()}" for array, _ in found)
    return Outcome(COMPUTES, "; ".join(shown))


def answers(asked: Sequence[Question]) -> Iterator[Outcome]:
    """Yield OpenVINO's answer to each question. A process answers `BATCH` questions; if it ends before, the outcome
    names those that it has answered, one of which may be the cause."""
    worker, before = Worker(LIMITS, plugin), []
    try:
        for question in asked:
            if len(before) == BATCH:
                worker.close()
                before.clear()
            found = worker.ask(question.subject())
            if found.kind in ANSWERS:
                before.append(question.name)
                yield found
            else:
                yield Outcome(DIES, "\n".join([f"{found.kind}: {found.text}", "asked before:", *before]))
                before.clear()
    finally:
        worker.close()


def ours(subject: Subject) -> str:
    """Return the error with which ovgpu refuses a model."""
    import ovgpu

    return inference.answer_with(ovgpu, subject, "CPU").text.partition("\n")[0]


def report(asked: Sequence[Question], found: Sequence[Outcome]) -> bool:
    """Print the table and the models that OpenVINO computes or does not answer; return whether it answers all."""
    out, counts = console(), {question.group: Counter[str]() for question in asked}
    for question, outcome in zip(asked, found, strict=True):
        counts[question.group][outcome.kind] += 1
    rows = [(group, *(each[kind] or "" for kind in ANSWERS)) for group, each in counts.items()]
    out.print(table("", ("operation", *ANSWERS), rows, right=(1, 2, 3, 4), unwrapped=(0,)))
    for question, outcome in zip(asked, found):
        if outcome.kind == DIES or (outcome.kind == COMPUTES and question.refused):
            out.print(f"{question.group}, {question.name} ({outcome.kind})", soft_wrap=True, markup=False)
            theirs = [f"  ovgpu: {ours(question.subject())}"] if question.refused else []
            lines = [f"  OpenVINO: {outcome.text}", *theirs]
            out.print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    total = sum(counts.values(), Counter[str]())
    out.print(f"{len(found):,} models: " + ", ".join(f"{total[kind]:,} {kind}" for kind in ANSWERS), style="bold")
    return not total[DIES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.refusals", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help=f"operations, such as Softmax or TopK-11, or {FINDINGS} (default: all)")
    args = parser.parse_args(arguments)
    if find_spec("openvino") is None:
        parser.error("openvino is not installed")
    asked, progress = list(questions(args.ops)), Console(stderr=True)
    each = track(
        answers(asked), "answered", len(asked), console=progress, transient=True, disable=not progress.is_terminal
    )
    return 0 if report(asked, list(each)) else 1


if __name__ == "__main__":
    sys.exit(main())
