"""Times per layer: averages, shares, and their lines as benchmark_app prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ovgpu.runtime.profile import ProfilingInfo

NAME_COLUMNS = 20


@dataclass(frozen=True)
class Share:
    """Times of a layer, and its share of the time of all layers."""

    info: ProfilingInfo
    fraction: float

    @property
    def text(self) -> str:
        return f"{self.fraction:.2%}"


def average(requests: Sequence[Sequence[ProfilingInfo]]) -> list[ProfilingInfo]:
    """Return the mean times of each layer over all requests that ran it."""
    layers: dict[tuple[str, str, int], list[ProfilingInfo]] = {}
    for infos in requests:
        seen: Counter[tuple[str, str]] = Counter()
        for info in infos:  # a layer may be several steps
            name = (info.node_name, info.exec_type)
            layers.setdefault((*name, seen[name]), []).append(info)
            seen[name] += 1
    return [
        ProfilingInfo(
            samples[0].node_name,
            samples[0].node_type,
            samples[0].exec_type,
            samples[0].status,
            sum((i.real_time for i in samples), timedelta()) / len(samples),
            sum((i.cpu_time for i in samples), timedelta()) / len(samples),
        )
        for samples in layers.values()
    ]


def shares(infos: Sequence[ProfilingInfo], order: str) -> list[Share]:
    """Return the shares of the layers in an order of -pcsort: "no_sort", "sort" (by time), or "simple_sort" (by time,
    only layers that were executed)."""
    total = totals(infos)[0]
    unsorted = [
        Share(info, info.real_time / total if total else 0.0)
        for info in infos
        if order != "simple_sort" or info.status is ProfilingInfo.Status.EXECUTED
    ]
    return unsorted if order == "no_sort" else sorted(unsorted, key=lambda share: share.info.real_time, reverse=True)


def milliseconds(time: timedelta) -> str:
    """Return a time in milliseconds as text."""
    return f"{time / timedelta(milliseconds=1):.3f}"


def totals(infos: Sequence[ProfilingInfo]) -> tuple[timedelta, timedelta]:
    """Return the sums of the real times and of the CPU times."""
    return (sum((i.real_time for i in infos), timedelta()), sum((i.cpu_time for i in infos), timedelta()))


def print_counters(requests: Sequence[Sequence[ProfilingInfo]], info: Callable[[str], None]) -> None:
    """Print the times per layer of every request."""
    for index, infos in enumerate(requests):
        info(f"Performance counts for {index}-th infer request")
        for layer in infos:
            print(_line(layer))
        _print_totals(infos)


def print_shares(requests: Sequence[Sequence[ProfilingInfo]], order: str, info: Callable[[str], None]) -> list[Share]:
    """Print the times per layer of every request with their shares, and return those of the last request."""
    layer_shares: list[Share] = []
    for index, infos in enumerate(requests):
        info(f"Performance counts sorted for {index}-th infer request")
        layer_shares = shares(infos, order)
        for share in layer_shares:
            print(f"{_line(share.info)}proportion: {share.text:<8}")
        _print_totals(infos)
    return layer_shares


def _line(info: ProfilingInfo) -> str:
    return (
        f"{_short(info.node_name):<{NAME_COLUMNS}} {info.status!s:<20} layerType: {_short(info.node_type):<20} "
        f"execType: {info.exec_type:<20} realTime (ms): {milliseconds(info.real_time):<10} "
        f"cpuTime (ms): {milliseconds(info.cpu_time):<10}"
    )


def _short(name: str) -> str:
    return f"{name[: NAME_COLUMNS - 4]}..." if len(name) >= NAME_COLUMNS else name


def _print_totals(infos: Sequence[ProfilingInfo]) -> None:
    real, cpu = totals(infos)
    print(f"Total time:     {milliseconds(real)} milliseconds\nTotal CPU time: {milliseconds(cpu)} milliseconds\n")
