"""TensorIterator or Loop whose body is one step of an LSTM, GRU or RNN -> LSTMSequence, GRUSequence or RNNSequence.

The input projections of all steps are then one product, and only the recurrence itself runs step by step.
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
from ovgpu.passes.recurrent_body import Body, batch_of, has_trip_count
from ovgpu.passes.recurrent_cells import Step, find_step
from ovgpu.symbolic import Int


def fuse_recurrent_loops(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _rewrite(model):
        model.validate_nodes_and_infer_types()


def _rewrite(model: Model) -> bool:
    replaced: dict[Output, Output] = {}
    changed = False
    used = {source for node in model.ops for source in node.sources if source is not None}
    for node in model.ops:
        node.sources = [None if s is None else replaced.get(s, s) for s in node.sources]
        for body in bodies(node.op):
            changed |= _rewrite(body)
        if has_trip_count(node):
            replaced.update(_fuse_loop(node, used))
    if replaced:
        model.changed()
    return changed or bool(replaced)


def _fuse_loop(node: Node, used: set[Output]) -> dict[Output, Output]:
    """Add a sequence op for a loop that is a recurrent layer. Return a dict from the loop's outputs to their
    replacements; it is empty for other loops."""
    body = Body(node)
    step = find_step(body)
    if step is None:
        return {}
    op: Any = node.op
    maps = [m for m in op.outputs if node.ports[m.port] in used]
    if not maps or not all(_is_state(body, step, m) for m in maps) or (frames := _add_frames(body, step)) is None:
        return {}
    y, *finals = _add_sequence(body, step, frames)
    replacements = {}
    for m in maps:
        old = node.ports[m.port]
        if m.axis is None:
            new = _shape_last_state(body, step, m, finals[step.new.index(body.result(m.result))])
        else:
            new = _shape_all_states(body, step, m, y)
        new.set_names(old.own_names)
        new.spec, new.rt_info = old.spec, old.rt_info
        replacements[old] = new
    return replacements


def _is_state(body: Body, step: Step, m: OutputMap) -> bool:
    """Return whether an output of the loop is a state after the last step, or h of every step."""
    value = body.result(m.result)
    shape = _output_shape(body, m)
    if value not in step.new or _axis_names(shape, step, m) is None:
        return False
    return m.axis is None or (value is step.new[0] and abs(m.stride) == 1 and equal(shape[m.axis], 1))


def _output_shape(body: Body, m: OutputMap) -> Sequence[Int]:
    """Return the shape of the value that one iteration gives to an output."""
    source = body.model.results[m.result].sources[0]
    return () if source is None or source.spec.shape is None else source.spec.shape


def _add_sequence(body: Body, step: Step, frames: Output) -> tuple[Output, ...]:
    """Add the sequence op for frames [N, T, D]. Return y [N, 1, T, H] and the last states [N, 1, H]."""
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


def _add_frames(body: Body, step: Step) -> Output | None:
    """Return the slices of all steps as x [N, T, D]. Return None if a Reshape would need D, which is not known."""
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


def _shape_last_state(body: Body, step: Step, m: OutputMap, final: Output) -> Output:
    """Return a last state [N, 1, H] in the shape that the loop gives it."""
    return _match_axes(body, step, m, final, ["batch", None, "hidden"])


def _shape_all_states(body: Body, step: Step, m: OutputMap, y: Output) -> Output:
    """Return y [N, 1, T, H] in the shape that the loop gives it, reversed if the loop reverses the slices' order."""
    if (m.stride < 0) != step.x.reverse:
        y = body.graph.cut(y, 2, END, -END - 1, -1)
    return _match_axes(body, step, m, y, ["batch", None, "steps", "hidden"])


def _match_axes(body: Body, step: Step, m: OutputMap, port: Output, axes: list[str | None]) -> Output:
    """Return ``port``, whose axes have the names ``axes`` (None: of extent 1), with the axes of the loop's output."""
    g = body.graph
    output_axes = _axis_names(_output_shape(body, m), step, m)
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


def _axis_names(shape: Sequence[Int], step: Step, m: OutputMap) -> list[str | None] | None:
    """Return the names of an output's axes: "batch", "hidden", "steps", or None for an axis of extent 1.

    The axis along which steps are concatenated has its name whatever its extent. Return None if there are other axes.
    """
    batch = batch_of(step.new[0].spec.shape)
    if batch is None:
        return None
    expected = [name for name, extent in (("batch", batch), ("hidden", step.hidden)) if not equal(extent, 1)]
    names: list[str | None] = []
    for i, extent in enumerate(shape):
        if m.axis is not None and i == m.axis % len(shape):
            names.append("steps")
        elif equal(extent, 1):
            names.append(None)
        elif not expected:
            return None
        else:
            names.append(expected.pop(0))
    return None if expected else names
