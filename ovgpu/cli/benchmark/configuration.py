"""Properties that the flags of ``ovgpu benchmark`` set, and files of properties."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ovgpu.cli.benchmark.report import AVERAGE, DETAILED
from ovgpu.compile import devices
from ovgpu.types import Type

Properties = dict[str, Any]
HINTS = {"tput": "THROUGHPUT", "ctput": "CUMULATIVE_THROUGHPUT"}


def configuration(args: argparse.Namespace, warn: Callable[[str], None]) -> Properties:
    """Return the properties for compiling the model: those of -load_config, overridden by those of the flags.

    Raises: ValueError for a value per device that names none of the target devices.
    """
    target = args.target_device
    config: Properties = loaded(args.load_config, target) if args.load_config else {}
    if args.perf_hint == "none":
        pass
    elif args.perf_hint:
        config["PERFORMANCE_HINT"] = HINTS.get(args.perf_hint, args.perf_hint.upper())
    elif "PERFORMANCE_HINT" not in config:
        config["PERFORMANCE_HINT"] = "LATENCY" if args.api_type == "sync" else "THROUGHPUT"
        warn(
            f"Performance hint was not explicitly specified in command line or config file. Device({target}) "
            f"performance hint will be set to {config['PERFORMANCE_HINT']}."
        )
    if args.number_infer_requests:
        config["PERFORMANCE_HINT_NUM_REQUESTS"] = args.number_infer_requests
    config["PERF_COUNT"] = _profiled(args, config, warn)
    for key, value in (
        ("NUM_STREAMS", per_device(args.number_streams, target, "-nstreams")),
        ("INFERENCE_PRECISION_HINT", per_device(args.infer_precision, target, "-infer_precision")),
        ("INFERENCE_NUM_THREADS", args.number_threads),
        ("ENABLE_CPU_PINNING", args.infer_threads_pinning),
    ):
        if value:
            config[key] = value
    if args.batch_size:
        warn("Batch size is set. Auto batching will be disabled")
        config["ALLOW_AUTO_BATCHING"] = False
    return config


def per_device(text: str | None, target: str, flag: str) -> str | None:
    """Return the value for the target device from ``value`` or ``DEVICE:value,DEVICE:value``; None if it has none.

    Raises: ValueError for the name of a device that is not among the targets.
    """
    base, _, listed = target.partition(":")
    targets = [base, *(name.lstrip("-") for name in listed.split(",") if name)]
    chosen = devices.resolve(target)
    matched = None
    for part in filter(None, (text or "").split(",")):
        name, separator, value = part.partition(":")
        if not separator:
            return part
        if name not in (*targets, *map(devices.family, targets), chosen, devices.family(chosen)):
            raise ValueError(f"{flag} {text}: {name} is none of the devices {', '.join(targets)}")
        if name in (target, base, chosen, devices.family(chosen)):
            matched = value
    return matched


def loaded(path: str, target: str) -> Properties:
    """Return the properties for a device in a file, from its section or its family's (NVIDIA for NVIDIA.0)."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    base = target.partition(":")[0]
    section: Any = next((document[name] for name in (target, base, devices.family(base)) if name in document), {})
    if not isinstance(section, dict):
        raise ValueError(f'{path} has no properties by device, as in {{"CPU": {{"NUM_STREAMS": "2"}}}}')
    return dict(section)


def dumped(config: Mapping[str, Any]) -> dict[str, str]:
    """Return properties as texts, as a file for -load_config has them."""
    return {
        key: "YES" if value is True else "NO" if value is False else property_text(value)
        for key, value in config.items()
    }


def property_text(value: Any) -> str:
    """Return a property's value as a command line or a JSON file writes it."""
    if isinstance(value, Type):
        return value.get_type_name()
    return value.name if isinstance(value, Enum) else str(value)


def _profiled(args: argparse.Namespace, config: Properties, warn: Callable[[str], None]) -> bool:
    """Return whether every layer is timed. Warn of the reason unless the flag -pc decides it."""
    if any(argument.partition("=")[0] in ("-pc", "--perf_counts") for argument in args.argv):
        return bool(args.perf_counts)
    if str(config.get("PERF_COUNT", "NO")).upper() in ("YES", "TRUE"):
        warn(f"Performance counters for {args.target_device} device is turned on. To print results use -pc option.")
        return True
    reasons = {
        "report type is " + args.report_type: args.report_type in (AVERAGE, DETAILED),
        "an execution graph is written": args.exec_graph_path,
        f"pcsort value is {args.perf_counts_sort}": args.perf_counts_sort,
        "a trace is written": args.trace,
    }
    reason = next((text for text, given in reasons.items() if given), None)
    if reason:
        warn(f"Turn on performance counters for {args.target_device} device since {reason}.")
    return reason is not None
