"""Execution graph of a compiled model: the model that is run, with the entries of OpenVINO's execution graphs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ovgpu.model import Model
from ovgpu.runtime.profile import ProfilingInfo

LAYER_TYPES = {"Parameter": "Input", "Constant": "Const", "Result": "Output"}


def execution_graph(model: Model, device: str, profile: Iterable[ProfilingInfo]) -> Model:
    """Return a copy of a model whose nodes' runtime information has the entries of OpenVINO's execution graphs.

    All are strings: ``execOrder``, ``execTimeMcs`` (microseconds, or "not_executed" without a profile), ``layerType``,
    ``originalLayersNames``, ``outputLayouts``, ``outputPrecisions``, ``primitiveType``, ``runtimePrecision``.
    """
    graph = model.clone()
    times: dict[str, timedelta] = {}
    for info in profile:  # a layer may be several steps
        times[info.node_name] = times.get(info.node_name, timedelta()) + info.real_time
    for order, node in enumerate(graph.ops):
        types = [port.element_type.get_type_name() for port in node.ports]
        time = times.get(node.friendly_name)
        node.rt_info.update(
            {
                "execOrder": str(order),
                "execTimeMcs": "not_executed" if time is None else str(round(time.total_seconds() * 1e6)),
                "layerType": LAYER_TYPES.get(node.op.name, node.op.name),
                "originalLayersNames": node.friendly_name,
                "outputLayouts": ",".join("abcdefghijklmnop"[: port.spec.rank or 0] for port in node.ports),
                "outputPrecisions": ",".join(types),
                "primitiveType": f"{device}_{types[0]}" if types else device,
                "runtimePrecision": types[0] if types else "",
            }
        )
    return graph
