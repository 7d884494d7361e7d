"""Status page: models, sequences, throughput, and a picture of latencies."""

from __future__ import annotations

import time
from html import escape

from ovgpu._util.host_memory import resident_bytes
from ovgpu.serve.models import Version
from ovgpu.serve.service import Service
from ovgpu.serve.statistics import percentile
from ovgpu.version import OWN

SECONDS = 300  # time span of the picture
BINS = 60  # points of a curve in this span
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 180, 60, 10, 24
CURVES = ((50, "#2a7"), (90, "#27a"), (99, "#c33"))  # percentiles and their colours

COLUMNS = ("per s", *(f"p{percent} ms" for percent, _ in CURVES), "queue ms", "errors", "wait", "run", "sequences")

STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 .5rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{padding:.2rem .4rem;text-align:left}
th{font-size:.8rem;vertical-align:bottom}tr.m td{border-top:1px solid #ddd}td.r{color:#c33}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}small{color:#666}
@media(max-width:40rem){body{font-size:13px}td,th{padding:.2rem}}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}tr.m td{border-color:#444}small{color:#999}}"""


def status_page(service: Service) -> str:
    """Return the page as HTML, which a browser renews every five seconds."""
    versions = service.models.versions()
    rows = [_rows(version, version not in service.models.retired) for version in versions]
    rows += [
        f'<tr class="m"><td colspan="{len(COLUMNS)}"><strong>{escape(name)}</strong> {escape(number)}</td></tr>'
        f'<tr><td class="r" colspan="{len(COLUMNS)}">{escape(state.lower())}: {escape(reason)}</td></tr>'
        for name, number, state, reason in service.models.index()
        if state != "READY"
    ]
    pictures = "".join(
        f"<h2>{escape(version.name)}, version {escape(version.number)}</h2>{_picture(version)}" for version in versions
    )
    heads = "".join(f'<th class="n">{column}</th>' for column in COLUMNS)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        f'<meta name="viewport" content="width=device-width"><title>ovgpu</title><style>{STYLE}</style>'
        f"<h1>ovgpu {escape(OWN)}</h1><p>{_state(service)}, up for {_duration(time.time() - service.started)}<br>"
        f"memory: {', '.join(_memory(versions))}</p>"
        f"<table><tr>{heads}</tr>{''.join(rows)}</table>{pictures}"
        f"<p><small>Rates, latencies and mean times in the queue are of the last {SECONDS // 60} minutes. Errors are "
        f"counted since a version was loaded. Inferences wait or run. Numbers for machines: "
        f'<a href="/metrics">/metrics</a>, <a href="/v2/models/stats">/v2/models/stats</a></small></p></html>'
    )


def _state(service: Service) -> str:
    if not service.accepting:
        return "stopping" if service.stopping.is_set() else "loading models"
    if service.draining:
        return "about to stop"
    return "ready" if service.ready else "not ready, because models are not loaded"


def _memory(versions: list[Version]) -> list[str]:
    """Return the memory of the process, and of its models on each device."""
    used = {"host": resident_bytes()}
    for version in versions:
        used.update(version.engine.memory())
    return [f"{size / 2**20:,.0f} MiB on {escape(device)}" for device, size in used.items()]


def _rows(version: Version, current: bool) -> str:
    """Return the name of a version, and its numbers, as two rows: all numbers fit a narrow window."""
    statistics, engine = version.statistics, version.engine
    recent = statistics.latencies(SECONDS)
    latencies = sorted(latency for _, latency in recent)
    span = max((age for age, _ in recent), default=0.0)
    waiting = engine.waiting
    texts = [
        _number(len(recent) / max(span, 1.0)),
        *(_number(1e3 * percentile(latencies, percent)) for percent, _ in CURVES),
        _number(1e3 * statistics.mean_wait(SECONDS)),
        f"{statistics.failed:,}",
        f"{waiting}",
        f"{max(version.in_flight - waiting, 0)}",
        f"{engine.slots[0]} of {engine.max_sequences}" if engine.stateful else "",
    ]
    cells = "".join(f'<td class="n">{text}</td>' for text in texts)
    ending = "" if current else " until its sequences end"
    description = escape(engine.description + engine.note(SECONDS))
    return (
        f'<tr class="m"><td colspan="{len(COLUMNS)}"><strong>{escape(version.name)}</strong> '
        f"{escape(version.number)}{ending} <small>{description}</small></td></tr><tr>{cells}</tr>"
    )


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _picture(version: Version) -> str:
    """Return the latencies of the last minutes as SVG: a curve for each percentile."""
    bins: list[list[float]] = [[] for _ in range(BINS)]
    for age, latency in version.statistics.latencies(SECONDS):
        bins[BINS - 1 - min(int(age * BINS / SECONDS), BINS - 1)].append(1e3 * latency)
    if not any(bins):
        return "<p><small>No inferences yet.</small></p>"
    for latencies in bins:
        latencies.sort()
    highest = _round_up(max(percentile(latencies, 99) for latencies in bins))
    step = (WIDTH - LEFT) / BINS
    parts = []
    for fraction in (0, 0.5, 1):
        y = TOP + HEIGHT * (1 - fraction)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#8884"/><text x="{LEFT - 6}" '
            f'y="{y + 4}" text-anchor="end">{highest * fraction:g} ms</text>'
        )
    parts.append(f'<text x="{WIDTH}" y="{TOP + HEIGHT + 20}" text-anchor="end">now</text>')
    for curve, (percent, colour) in enumerate(CURVES):
        path, drawing = "", False
        for i, latencies in enumerate(bins):
            if latencies:
                x = LEFT + (i + 0.5) * step
                y = TOP + HEIGHT * (1 - percentile(latencies, percent) / highest)
                path += f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}h.1"
            drawing = bool(latencies)
        parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linecap="round"/>'
            f'<text x="{LEFT + 70 * curve}" y="{TOP + HEIGHT + 20}" fill="{colour}">p{percent}</text>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {TOP + HEIGHT + BOTTOM}" role="img" font-size="12" fill="currentColor">'
        f"<title>Latencies of the last {SECONDS // 60} minutes</title>{''.join(parts)}</svg>"
    )


def _round_up(value: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not less than a value."""
    power = 10.0**-3
    while True:
        for factor in (1, 2, 5):
            if factor * power >= value:
                return factor * power
        power *= 10


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds) // size} {unit}"
    return f"{int(seconds)} seconds"
