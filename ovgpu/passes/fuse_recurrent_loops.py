"""TensorIterator or Loop whose body is one step of an LSTM, GRU or RNN -> LSTMSequence, GRUSequence or RNNSequence.

The projections of all steps are then one product, and only the recurrence itself runs step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.view import equal
from ovgpu.ops.infrastructure.control_flow import OutputMap
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.movement.slicing import END
from ovgpu.ops.shape.reshape import Reshape, Squeeze, Unsqueeze
from ovgpu.passes.recurrent_body import Body, batch_of, is_counted
from ovgpu.passes.recurrent_cells import Step, find_step
from ovgpu.symbolic import Int


def fuse_recurrent_loops(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _rewrite(model):
        model.validate_nodes_and_infer_types()


def _rewrite(model: Model) -> bool:
    new: dict[Output, Output] = {}
    changed = False
    used = {source for node in model.ops for source in node.sources if source is not None}
    for node in model.ops:
        node.sources = [None if s is None else new.get(s, s) for s in node.sources]
        for body in bodies(node.op):
            changed |= _rewrite(body)
        if is_counted(node):
            new.update(_layer(node, used))
    if new:
        model.changed()
    return changed or bool(new)


def _layer(node: Node, used: set[Output]) -> dict[Output, Output]:
    """Return the replacements of a loop's outputs if it is a recurrent layer, else an empty dict."""
    body = Body(node)
    step = find_step(body)
    if step is None:
        return {}
    op: Any = node.op
    maps = [m for m in op.outputs if node.ports[m.port] in used]
    if not maps or not all(_is_state(body, step, m) for m in maps) or (frames := _frames(body, step)) is None:
        return {}
    y, *finals = _sequence(body, step, frames)
    found = {}
    for m in maps:
        old = node.ports[m.port]
        if m.axis is None:
            new = _last(body, step, m, finals[step.new.index(body.result(m.result))])
        else:
            new = _every(body, step, m, y)
        new.set_names(old.own_names)
        new.spec, new.rt_info = old.spec, old.rt_info
        found[old] = new
    return found


def _is_state(body: Body, step: Step, m: OutputMap) -> bool:
    """Return whether an output is a last state, or h of every step."""
    value = body.result(m.result)
    shape = _shape(body, m)
    if value not in step.new or _order(shape, step, m) is None:
        return False
    return m.axis is None or (value is step.new[0] and abs(m.stride) == 1 and equal(shape[m.axis], 1))


def _shape(body: Body, m: OutputMap) -> Sequence[Int]:
    """Return the shape of the value that one iteration gives to an output."""
    source = body.model.results[m.result].sources[0]
    return () if source is None or source.spec.shape is None else source.spec.shape


def _sequence(body: Body, step: Step, frames: Output) -> tuple[Output, ...]:
    """Return y [N, 1, T, H] and the last states [N, 1, H] of frames [N, T, D]."""
    g = body.graph
    initial = [body.initial(s) for s in step.states]
    states = [
        g.add(Unsqueeze(), s, g.constant([1]))
        if s is not None and s.spec.rank == 2
        else g.add(Reshape(), s, g.constant([-1, 1, step.hidden]))
        for s in initial
    ]
    weights = [None if m is None else g.add(Unsqueeze(), m, g.constant([0])) for m in (step.w, step.r, step.b)]
    op = step.sequence(direction="reverse" if step.x.reverse else "forward", **step.attributes)
    outputs: tuple[Output, ...] = g.add(op, frames, *states, None, *weights, outputs=1 + len(states))
    return outputs


def _frames(body: Body, step: Step) -> Output | None:
    """Return all slices as x [N, T, D], None if D is not known where it matters."""
    g, source, shape, axis = body.graph, step.x.source, step.x.shape, step.x.axis
    if len(shape) == 3 and axis < 2 and equal(shape[2], step.features):
        return source if axis else g.add(Transpose(), source, g.constant([1, 0, 2]))
    if step.columns is None:
        return None
    if axis:
        order = [axis, *(i for i in range(len(shape)) if i != axis)]
        source = g.add(Transpose(), source, g.constant(order))
    steps_first = g.add(Reshape(special_zero=True), source, g.constant([0, -1, step.columns]))
    frames: Output = g.add(Transpose(), steps_first, g.constant([1, 0, 2]))
    return frames


def _last(body: Body, step: Step, m: OutputMap, final: Output) -> Output:
    """Return a last state [N, 1, H] in the shape that the loop gives it."""
    return _reshaped(body, step, m, final, ["batch", None, "hidden"])


def _every(body: Body, step: Step, m: OutputMap, y: Output) -> Output:
    """Return y [N, 1, T, H] in the shape that the loop gives it, reversed if the loop reverses the slices' order."""
    if (m.stride < 0) != step.x.reverse:
        y = body.graph.cut(y, 2, END, -END - 1, -1)
    return _reshaped(body, step, m, y, ["batch", None, "steps", "hidden"])


def _reshaped(body: Body, step: Step, m: OutputMap, port: Output, axes: list[str | None]) -> Output:
    """Return a tensor of these axes (None: of extent 1) with the axes that the output has, in its order."""
    g = body.graph
    output_axes = _order(_shape(body, m), step, m)
    assert output_axes is not None
    named = [a for a in output_axes if a is not None]
    removed = [i for i, a in enumerate(axes) if a not in named]
    port = g.add(Squeeze(), port, g.constant(removed))
    remaining = [a for a in axes if a in named]
    if remaining != named:
        port = g.add(Transpose(), port, g.constant([remaining.index(a) for a in named]))
    if None in output_axes:
        port = g.add(Unsqueeze(), port, g.constant([i for i, a in enumerate(output_axes) if a is None]))
    return port


def _order(shape: Sequence[Int], step: Step, m: OutputMap) -> list[str | None] | None:
    """Return the names of an output's axes, with None for axes of extent 1; None if it has other axes.

    Axes of extent 1 are not named, except the one along which steps are concatenated.
    """
    batch = batch_of(step.new[0].spec.shape)
    if batch is None:
        return None
    expected = [name for name, extent in (("batch", batch), ("hidden", step.hidden)) if not equal(extent, 1)]
    found: list[str | None] = []
    for i, extent in enumerate(shape):
        if m.axis is not None and i == m.axis % len(shape):
            found.append("steps")
        elif equal(extent, 1):
            found.append(None)
        elif not expected:
            return None
        else:
            found.append(expected.pop(0))
    return None if expected else found
