"""Control flow of a kernel's machine code: its loops, and the path that a full warp takes through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.kernels.sass import Instruction

ENDS = ("EXIT", "RET", "BRX", "BPT")
BRANCHES = ("BRA", "CALL")  # a call of a label within the kernel does not return


@dataclass(eq=False)
class Loop:
    """A natural loop: the blocks of its body, of which ``header`` is entered, and the loops in it.

    ``path`` is one trip through the body: blocks, and loops, which are entered once.
    """

    header: int
    blocks: set[int]
    loops: list[Loop] = field(default_factory=list)
    path: list[int | Loop] = field(default_factory=list)

    def all(self) -> Iterator[Loop]:
        """Yield this loop and those in it."""
        yield self
        for inner in self.loops:
            yield from inner.all()


@dataclass(frozen=True)
class Block:
    """Instructions [start, end) of which only the last may branch, and the blocks that may follow."""

    start: int
    end: int
    successors: tuple[int, ...]


class Flow:
    """Blocks, loops and path of a kernel. Code that only calls reach, such as slow divisions, is left out."""

    def __init__(self, instructions: Sequence[Instruction], labels: Mapping[str, int]) -> None:
        self.instructions = instructions
        self.blocks = _blocks(instructions, labels)
        reached = _reachable(self.blocks)
        self.loops = _loops(self.blocks, reached)
        whole = Loop(0, reached, self.loops)
        for loop in reversed(list(whole.all())):  # inner ones first: the choice of a path looks into them
            loop.path = _Path(self, loop, loop is whole).walk()
        self.path = whole.path

    def entered(self, path: Sequence[int | Loop] | None = None) -> Iterator[Loop]:
        """Yield the loops that the path enters, outer ones first."""
        for item in self.path if path is None else path:
            if isinstance(item, Loop):
                yield item
                yield from self.entered(item.path)

    def code(self, path: Sequence[int | Loop], inner: bool = True) -> Iterator[Instruction]:
        """Yield the instructions of a path, with or without those of one trip through each loop in it."""
        for item in path:
            if not isinstance(item, Loop):
                yield from self.instructions[self.blocks[item].start : self.blocks[item].end]
            elif inner:
                yield from self.code(item.path)


def _blocks(instructions: Sequence[Instruction], labels: Mapping[str, int]) -> list[Block]:
    leaders = {0, *labels.values()}
    leaders.update(i + 1 for i, x in enumerate(instructions) if (x.target and x.name in BRANCHES) or x.name in ENDS)
    starts = sorted(i for i in leaders if i < len(instructions))
    number = {start: i for i, start in enumerate(starts)}
    blocks = []
    for i, start in enumerate(starts):
        end = starts[i + 1] if i + 1 < len(starts) else len(instructions)
        last, following = instructions[end - 1], [i + 1] if i + 1 < len(starts) else []
        if last.name in BRANCHES and last.target and not last.opcode.startswith(("BRA.DIV", "BRA.CONV")):
            target = number[labels[last.target]]
            following = [target] if _is_certain(last) else [*following, target]
        elif last.name in ENDS and not last.predicate:
            following = []
        blocks.append(Block(start, end, tuple(dict.fromkeys(following))))
    return blocks


def _is_certain(branch: Instruction) -> bool:
    return not branch.predicate and len(branch.operands) == 1


def _reachable(blocks: Sequence[Block]) -> set[int]:
    found, pending = set[int](), [0]
    while pending:
        block = pending.pop()
        if block not in found:
            found.add(block)
            pending.extend(blocks[block].successors)
    return found


def _loops(blocks: Sequence[Block], reached: set[int]) -> list[Loop]:
    """Return the outermost natural loops, with the others in them."""
    before: dict[int, list[int]] = {block: [] for block in reached}
    for block in reached:
        for following in blocks[block].successors:
            before[following].append(block)
    dominators = _dominators(before)
    bodies: dict[int, set[int]] = {}
    for block in reached:
        for header in blocks[block].successors:
            if header in dominators[block]:
                bodies.setdefault(header, {header}).update(_body(before, header, block))
    loops = [Loop(header, body) for header, body in sorted(bodies.items(), key=lambda item: -len(item[1]))]
    outermost: list[Loop] = []
    for i, loop in enumerate(loops):
        outer = [other for other in loops[:i] if loop.blocks <= other.blocks]
        (outer[-1].loops if outer else outermost).append(loop)
    return outermost


def _body(before: Mapping[int, Sequence[int]], header: int, end: int) -> set[int]:
    """Return the blocks from which a loop's end is reached without its header."""
    found, pending = {header}, [end]
    while pending:
        block = pending.pop()
        if block not in found:
            found.add(block)
            pending.extend(before[block])
    return found


def _dominators(before: Mapping[int, Sequence[int]]) -> dict[int, set[int]]:
    """Return, for every block, the blocks that all ways to it pass. Block 0 is the entry."""
    dominators = {block: set(before) for block in before} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in sorted(before.keys() - {0}):
            new = {block} | set.intersection(*(dominators[x] for x in before[block]))
            changed |= new != dominators[block]
            dominators[block] = new
    return dominators


class _Path:
    """Choice of a path through the whole kernel or through the body of a loop, whose inner loops count as one node.

    Where a branch skips code, the code is taken, unless it calls a slow path. Of two alternatives, the one with wider
    loads and stores is taken: the other one serves ends of rows, or layouts that are not aligned.
    """

    def __init__(self, flow: Flow, loop: Loop, whole: bool) -> None:
        self.flow, self.loop, self.whole = flow, loop, whole
        self.inner = {block: inner for inner in loop.loops for block in inner.blocks}
        self.following: dict[int, tuple[int, ...]] = {}
        nodes = sorted({self._node(block) for block in loop.blocks})
        for node in nodes:
            self.following[node] = self._successors(node)
        self.after = self._postdominators(nodes)

    def _node(self, block: int) -> int:
        """Return a block, or the header of the inner loop that it belongs to."""
        inner = self.inner.get(block)
        return block if inner is None else inner.header

    def _successors(self, node: int) -> tuple[int, ...]:
        members = self.inner[node].blocks if node in self.inner else {node}
        targets = (x for block in sorted(members) for x in self.flow.blocks[block].successors)
        kept = (self._node(x) for x in targets if x in self.loop.blocks and x not in members)
        return tuple(dict.fromkeys(x for x in kept if self.whole or x != self.loop.header))

    def _postdominators(self, nodes: Sequence[int]) -> dict[int, set[int]]:
        """Return, for every node, the nodes that all ways from it pass."""
        found = {node: set(nodes) for node in nodes}
        changed = True
        while changed:
            changed = False
            for node in reversed(nodes):
                ways = [found[x] for x in self.following[node]]
                new = {node} | (set.intersection(*ways) if ways else set())
                changed |= new != found[node]
                found[node] = new
        return found

    def walk(self) -> list[int | Loop]:
        return [self.inner.get(node, node) for node in self._way(self.loop.header, None)]

    def _way(self, node: int | None, until: int | None) -> list[int]:
        found: list[int] = []
        while node is not None and node != until and node not in found:
            found.append(node)
            node = self._choose(node)
        return found

    def _choose(self, node: int) -> int | None:
        ways = self.following[node]
        if len(ways) < 2:
            return ways[0] if ways else None
        common = set.intersection(*(self.after[x] for x in ways))
        join = max(common, key=lambda x: len(self.after[x]), default=None)
        return max(ways, key=lambda x: self._preference(x, join))

    def _preference(self, way: int, join: int | None) -> tuple[bool, bool, float, int]:
        """Return the order of alternatives: skipped code rather than none, without calls, with wide accesses, long.

        Widths count only if the alternatives join: otherwise they do different work.
        """
        code = [x for node in self._way(way, join) for x in self.flow.code([self.inner.get(node, node)])]
        widths = [x.width for x in code if x.name in ("LDG", "STG", "LDS", "STS", "LDGSTS", "LDSM")]
        calls = any(x.name == "CALL" and not x.target for x in code)
        width = sum(widths) / len(widths) if widths and join is not None else 0.0
        return not calls, bool(code), width, len(code)
