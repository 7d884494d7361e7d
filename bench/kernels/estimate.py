"""Estimates of the time of launches, from machine code, grid and a card's data.

A launch takes the time of an empty kernel, that of one warp from its first instruction to its last, and the longest of
the times below. If warps wait at barriers in each trip, and few blocks share a multiprocessor, a part of the shorter
times adds to it: `EXPOSED`. A launch that begins before the one before it has ended takes less time than an empty
kernel, and executes what precedes its wait meanwhile; bytes that it requests by then arrive while memory is idle
(`bench/kernels/sequence.py`). `bench/kernels/calibration.py` compares estimates with measured times.

bytes         the bytes of its arrays over the bandwidth that a copy reaches, or of L2 for arrays that L2 holds, and
              for those that blocks read again
instructions  the instructions of all warps of a multiprocessor over the rate of the unit that needs longest, or over
              the issue of instructions
tensor        multiply-adds of tensor cores over their rate
latency       trips of a warp through its main loop that wait for operands, and blocks that wait for others to end

Warps are taken to do equal shares of the work, and all trips through a loop to cost the same. Libraries are estimated
by bytes, multiply-adds in tiles of the result, and the time that a small call takes on an H100.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, prod

from bench.kernels import work
from bench.kernels.budget import WORK, Budget, amount
from bench.kernels.cards import Card
from bench.kernels.dry_device import resident_blocks
from bench.kernels.launches import Launch, LibraryCall, StepLaunches
from bench.kernels.machine_code import MachineCode
from bench.kernels.sass import Instruction
from bench.kernels.sequence import Estimate, overlap
from bench.kernels.units import LANES, Timeline, occupied
from ovgpu.runtime.plan import Operand, Plan, PlanStep
from ovgpu.types import Type

WAIT = "ACQBULK"  # griddepcontrol.wait
BARRIERS = ("BAR", "UCGABAR_WAIT")
EXPOSED = 0.7  # of the shorter times of a block that is alone on its multiprocessor; see `calibration.py`
LIBRARY_SECONDS = 3.5e-6  # of a small product of cuBLAS in a CUDA graph, `results/gpu-h100-kernels.md`
LIBRARY_SHARE = 0.75  # of the peak rate that products of libraries reach
CONVOLUTION_SHARE = 0.5  # likewise, convolutions
LAYOUT_SECONDS = 2.4e-6  # of cuDNN's change of a small array's layout
LIBRARY_TILE = 64, 64  # of results, each computed by one multiprocessor
LIBRARY_DEPTH = 768  # of an f32 tile in cuBLAS, which splits deeper ones among idle multiprocessors
ON_DEVICE = ("constant", "state", "variable", "input", "output")


@dataclass(frozen=True)
class Traffic:
    """Bytes of a step in memory and in L2."""

    memory: float
    cache: float

    def seconds(self, card: Card, blocks: int) -> float:
        """Return the time for the bytes; few blocks do not reach the bandwidth."""
        active = min(blocks, card.multiprocessors)
        reached = min(card.cache_bandwidth, active * card.architecture.cache_bandwidth * card.clock)
        return max(self.memory / (card.copy_share * card.bandwidth), (self.memory + self.cache) / reached)


def of_plan(plan: Plan, steps: Sequence[StepLaunches], card: Card) -> list[tuple[PlanStep, list[Estimate]]]:
    """Return the estimates of the launches of each step."""
    ports = sum(port.operand.nbytes or 0 for port in (*plan.inputs, *plan.results))
    fits = plan.constants + plan.arena + plan.state + ports <= card.cache
    return [(row.step, estimates) for row, estimates in zip(steps, of_steps(steps, card, fits))]


def of_steps(steps: Sequence[StepLaunches], card: Card, fits: bool = False) -> list[list[Estimate]]:
    """Return the estimates of the launches of consecutive steps; for ``fits`` see `of_step`."""
    found = [list(of_step(row, card, fits)) for row in steps]
    overlapped = iter(overlap([estimate for estimates in found for estimate in estimates]))
    return [[next(overlapped) for _ in estimates] for estimates in found]


def of_step(row: StepLaunches, card: Card, fits: bool = False) -> Iterator[Estimate]:
    """Yield the estimates of a step's launches; ``fits`` says that L2 holds all that the plan reads and writes."""
    step, launches = row.step, row.launches
    total = work.multiply_adds(step) * work.unmasked(step, [launch.name for launch in launches])
    main = _main_launches(step, launches, total)
    traffic, projection = traffic_of(step, card, fits), work.projection(step)
    for number, launch in enumerate(launches):
        share = (number in main) / len(main)
        part = Traffic(traffic.memory * share, traffic.cache * share)
        if isinstance(launch, LibraryCall):
            yield _of_library(launch, part, projection or total * share, step, card)
        else:
            if not share:  # several launches of a kernel divide its arrays among them
                part = Traffic(0.0, work.nbytes(step, launch) / sum(other.name == launch.name for other in launches))
            part = Traffic(part.memory, part.cache + share * work.reread(step, launch))
            yield of_launch(launch, part, work.products(launch) * total * share, step, card)


def _main_launches(step: PlanStep, launches: Sequence[Launch | LibraryCall], total: float) -> set[int]:
    """Return the numbers of the launches that do a step's work: those with the products, if it has any, else those with
    the largest arrays, as launches that join partial results have small ones. Rotations before an attention are none of
    its products."""
    if not total:
        sizes = [work.nbytes(step, x) if isinstance(x, Launch) else inf for x in launches]
        return {i for i, size in enumerate(sizes) if 2 * size >= max(sizes)}
    whole = set(range(len(launches)))
    products = {
        i
        for i, x in enumerate(launches)
        if (isinstance(x, LibraryCall) and x.name != "transfer")
        or (isinstance(x, Launch) and budget(x.code, True).work != "bytes")
    }
    attention = {i for i in products if launches[i].name.startswith("attend")}
    recurrent = {i for i in products if launches[i].name.startswith("recurrent")}  # the library projects the input
    products = attention or recurrent or products
    tensor = {i for i in products if isinstance(x := launches[i], Launch) and budget(x.code, True).work == "tensor"}
    return tensor or products or whole


@lru_cache(4096)
def budget(code: MachineCode, products: bool, exits: bool = False) -> Budget:
    """Return the budget of a kernel in a step with or without products; see `Budget.of`."""
    return Budget.of(code, WORK if products else ("bytes",), exits)


def traffic_of(step: PlanStep, card: Card, fits: bool = False) -> Traffic:
    """Return the bytes of a step. Constants, states, inputs and outputs lie in memory unless everything fits in L2;
    results of earlier steps lie in L2 if they take at most half of it."""
    memory = sum(x.nbytes or 0 for x in (*step.inputs, *step.outputs) if x is not None and _in_memory(x, card))
    whole = sum(x.nbytes or 0 for x in (*step.inputs, *step.outputs) if x is not None)
    moved = step.bytes_moved
    share = 0.0 if fits or not whole else memory / whole
    return Traffic(moved * share, moved * (1 - share))


def _in_memory(operand: Operand, card: Card) -> bool:
    return operand.location.startswith(ON_DEVICE) or (operand.nbytes or 0) > card.cache // 2


def _peak(step: PlanStep, card: Card) -> tuple[bool, float]:
    """Return whether tensor cores compute a step, and multiply-adds per clock and multiprocessor at best."""
    first, peak = step.inputs[0] if step.inputs else None, card.peak_tensor or card.tensor["f16"]
    if first is not None and first.type == Type.i8:
        return True, peak * card.tensor["i8"] / card.tensor["f16"]
    if all(x is None or x.type.size <= 2 for x in step.inputs):
        return True, peak
    if step.tf32:
        return True, peak * card.tensor["tf32"] / card.tensor["f16"]
    return False, LANES * card.architecture.rates["fp32"]


def floor(steps: Sequence[StepLaunches], card: Card) -> float:
    """Return the seconds that a plan takes at least: of its bytes at the memory's full bandwidth, or of its products at
    the peak rate. Tensor cores multiply f32 only in TF32."""
    moved = sum(traffic_of(row.step, card).memory for row in steps if row.launches) / card.bandwidth
    products = sum(work.multiply_adds(row.step) / _peak(row.step, card)[1] for row in steps)
    return max(moved, products / card.multiprocessors / card.clock)


def _of_library(call: LibraryCall, traffic: Traffic, total: float, step: PlanStep, card: Card) -> Estimate:
    if call.name == "transfer":
        return Estimate(call, card.launch)
    moved = traffic.seconds(card, card.multiprocessors)
    if not total:
        return Estimate(call, LIBRARY_SECONDS, bytes=moved)
    tensor, peak = _peak(step, card)
    tiles = work.tiles(step, *LIBRARY_TILE)
    if not tensor and call.name.startswith("cuBLAS"):
        depth = total / tiles / prod(LIBRARY_TILE)
        tiles *= max(1, min(card.multiprocessors // tiles, ceil(depth / LIBRARY_DEPTH)))
    busiest = -(-tiles // card.multiprocessors) * total / tiles
    convolves = "Convolution" in step.op
    products = busiest / ((CONVOLUTION_SHARE if convolves else LIBRARY_SHARE) * peak * card.clock)
    return Estimate(
        call,
        LIBRARY_SECONDS + (work.layout_changes(step) * LAYOUT_SECONDS if convolves and tensor else 0.0),
        0.0,
        moved,
        0.0 if tensor else products,
        products if tensor else 0.0,
        0.0,
        "fp32",
        products=total,
    )


def of_launch(launch: Launch, traffic: Traffic, total: float, step: PlanStep, card: Card) -> Estimate:
    """Return the estimate of a launch that does ``total`` multiply-adds of a step and moves these bytes."""
    found = budget(launch.code, bool(total), not work.merges(launch))
    before, path, head = _divided(found, launch.early)
    warps = -(-launch.threads // 32)
    needed = (traffic.memory + traffic.cache) if found.work == "bytes" else total * work.padding(step, launch)
    rounds = work.dependent_steps(step) if total and found.outer else 1
    trips = needed / found.per_trip / (launch.blocks * warps) if found.loop and found.per_trip else 1.0
    trips = max(work.sequences(step, launch) * rounds or trips, rounds)
    memory = card.architecture.latencies["memory" if traffic.memory > traffic.cache else "cache"]
    start, per_round, per_trip = _cycles(found, path, card, memory)
    each = -(-launch.blocks // card.multiprocessors)
    units: dict[str, float] = defaultdict(float)
    for code, times in ((path, 1.0), (found.outer, rounds - 1.0), (found.loop, trips - rounds)):
        for name, cycles in occupied(code, card).items():
            units[name] += warps * each * times * cycles
    tensor = units.pop("tensor", 0.0)
    unit = max(units, key=lambda name: units[name])
    resident = max(resident_blocks(launch.code, card, launch.threads, launch.shared), 1)
    at_once = card.multiprocessors * resident
    one = start + (rounds - 1) * per_round + (trips - rounds) * per_trip
    latency = (-(-launch.blocks // at_once) * one - start) / card.clock + (rounds - 1) * card.barrier
    ahead = min(min(launch.blocks, at_once) * warps * amount(before, "bytes"), traffic.memory)
    waits = any(instruction.name in BARRIERS for instruction in (*found.loop, *found.outer))
    empty, moved = card.early_launch if launch.early else card.launch, traffic.seconds(card, launch.blocks)
    return Estimate(
        launch,
        empty,
        start / card.clock,
        moved,
        units[unit] / card.clock,
        tensor / card.clock,
        latency,
        unit,
        trips,
        total,
        ahead=ahead / (card.copy_share * card.bandwidth),
        share=each / resident,
        head=Timeline(card.architecture, memory).run(head) / card.clock,
        exposed=EXPOSED * (1 - 1 / max(trips, 1)) / min(resident, each) if waits else 0.0,
    )


def _divided(found: Budget, early: bool) -> tuple[Sequence[Instruction], Sequence[Instruction], Sequence[Instruction]]:
    """Return the path of a warp before it waits for the launches before its own, which it does if it is launched
    ``early``; the path behind that; and the part of the latter before the main loop."""
    path = found.path
    waits = [i for i, instruction in enumerate(path) if early and instruction.name == WAIT]
    wait = waits[0] + 1 if waits else 0
    loop = {id(instruction) for instruction in found.loop}
    first = next((i for i, instruction in enumerate(path) if id(instruction) in loop), len(path))
    return path[:wait], path[wait:], path[wait:first]


def _cycles(found: Budget, path: Sequence[Instruction], card: Card, memory: float) -> tuple[float, float, float]:
    """Return the cycles of a warp on this path, and of one more trip through the outer and the main loop. Loads from
    global memory take ``memory`` cycles."""
    architecture = card.architecture

    def again(code: Sequence[Instruction]) -> float:
        timeline = Timeline(architecture, memory)
        timeline.run(code)
        second = timeline.run(code)
        return timeline.run(code) - second

    return Timeline(architecture, memory).run(path), again(found.outer), again(found.loop)
