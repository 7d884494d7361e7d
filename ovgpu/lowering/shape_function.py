"""Code generation of shape functions: one Python function per segment that computes the values of its symbols.

``shape_function(arrays) -> (symbol_values, hosts)``: ``arrays`` holds the program's arrays by value id (from the caller
and from earlier segments), then the inputs on the host. ``symbol_values`` are ints; ``hosts`` are the host tensors that
symbols cannot express. The function also runs the checks that shape inference left open: it raises `OpError` if one
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError, explain
from ovgpu.lowering.program import HostInput, HostNode, Segment
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.symbolic import CHECKS, HELPERS, Atom, Check, ExpressionCodegen


def compile_shape_function(
    segment: Segment,
    checks: Sequence[Check],
    source: Callable[[Atom], tuple[str, Any, int]],
    on_host: Mapping[int, int],
) -> None:
    """Generate ``segment.shape_function``.

    ``source`` returns the origin of an atom's number: ("shape", value id, axis), ("strides", (value id, bytes per
    element), axis), ("item", value id, element) or ("host", host node, element). ``on_host`` maps the value id of an
    input to the index of its host array in ``arrays``.
    """
    names: dict[str, Any] = {
        "fetch": fetch,
        "integer": integer,
        "evaluate_host": evaluate_host,
        "host_array": host_array,
        "fail": fail,
        "checks": checks,
        **HELPERS,
    }
    done: set[int] = set()

    def source_code(atom: Atom) -> str:
        kind, origin, element = source(atom)
        if kind == "host":
            host(origin)
            return f"integer(h{origin}, {element})"
        if kind == "item":
            return f"integer(fetch(A[{on_host.get(origin, origin)}]), {element})"
        if kind == "strides":
            value, itemsize = origin
            return f"A[{value}].strides[{element}] // {itemsize}"
        return f"A[{origin}].shape[{element}]"

    codegen = ExpressionCodegen(source_code)

    def argument(given: HostInput | int | None) -> str:
        if given is None:
            return "None"
        if isinstance(given, int):
            return f"fetch(A[{on_host.get(given, given)}])"
        if given.host_node >= 0:
            host(given.host_node)
            return f"h{given.host_node}"
        if given.ints is not None:
            name = f"t{len(names)}"
            names[name] = given
            return f"host_array({name}, [{', '.join(codegen.expression(i) for i in given.ints)}])"
        name = f"c{len(names)}"
        names[name] = given.constant
        return name

    def host(index: int) -> None:
        if index not in done:
            done.add(index)
            node, output = segment.host_nodes[index], 0
            names[f"n{index}"] = node
            arguments = ", ".join(argument(x) for x in node.inputs)
            codegen.lines.append(f"h{index} = evaluate_host(n{index}, [{arguments}])[{output}]")

    for index in range(len(segment.host_nodes)):
        host(index)
    for index, check in enumerate(checks):
        a, b = codegen.expression(check.a), codegen.expression(check.b)
        codegen.lines.append(f"if {CHECKS[check.op].format(a, b)}: fail(checks[{index}], {a}, {b})")
    symbol_values = [codegen.expression(symbol) for symbol in segment.symbols]
    body = "\n    ".join(
        [
            *codegen.lines,
            f"return ({', '.join(symbol_values)}{',' if symbol_values else ''}), "
            f"[{', '.join(f'h{i}' for i in range(len(segment.host_nodes)))}]",
        ]
    )
    segment.shape_function_source = f"def shape_function(A):\n    {body}\n"
    exec(compile(segment.shape_function_source, "<shape function>", "exec"), names)
    segment.shape_function = names["shape_function"]


def fetch(array: Any) -> np.ndarray[Any, Any]:
    """Return an array on the host. The host waits here for the device."""
    return array if isinstance(array, np.ndarray) else array.get()


def integer(array: np.ndarray[Any, Any], element: int) -> int:
    """Return one element as an int; an array of a type that NumPy lacks holds codes, which are decoded."""
    flat = array.reshape(-1)
    return int(flat[element] if flat.dtype.kind != "V" else decode(flat[element : element + 1])[0])


def host_array(given: HostInput, values: list[int]) -> np.ndarray[Any, Any]:
    """Return the values as an array of the host input's type and shape."""
    return np.array(values, given.type.storage).reshape(given.shape)


def evaluate_host(node: HostNode, inputs: Sequence[Any]) -> Sequence[Any]:
    """Evaluate a host node with NumPy. Any failure raises `OpError` with the node's source location."""
    try:
        return evaluate(node.op, NUMPY, inputs, node.outputs)
    except OpError as e:
        raise e.at(node.op.name, node.source_location) from None
    except Exception as e:
        raise OpError(explain(e)).at(node.op.name, node.source_location) from e


def fail(check: Check, a: int, b: int) -> None:
    """Raise the `OpError` of a check that failed for the numbers ``a`` and ``b``."""
    error = OpError(check.message.format(a, b))
    raise error if check.where is None else error.at(*check.where)
