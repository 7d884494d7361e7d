"""Flags of ``ovgpu benchmark``, compatible with OpenVINO's benchmark_app."""

from __future__ import annotations

import argparse
from typing import Any

from ovgpu.cli.report import AVERAGE, DETAILED, NO_COUNTERS

IGNORED = {  # flags that are accepted without effect, and the reason
    "number_threads": "-nthreads is for OpenVINO's CPU device only",
    "infer_threads_pinning": "-pin is for OpenVINO's CPU device only",
    "input_precision": "-ip is not needed: inputs are converted to the types of the model",
    "output_precision": "-op has no effect: outputs have the types of the model",
    "input_output_precision": "-iop has no effect: inputs and outputs have the types of the model",
    "mean_values": "--mean_values has no effect: inputs are used as they are",
    "scale_values": "--scale_values has no effect: inputs are used as they are",
    "load_from_file": "-lfile has no effect: models are always read first",
    "extensions": "-extensions has no effect: operations are added with @ovgpu.register_op",
}
HINT_ALIASES = {"tput": "throughput", "ctput": "cumulative_throughput", "": "throughput"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the parser of the command."""
    add = parser.add_argument
    add("model", nargs="?", help="the .xml file of the model, or its folder")
    add("-m", "--path_to_model", metavar="MODEL", help="the same as MODEL")
    add("-d", "--target_device", default="AUTO", metavar="DEVICE", help="CPU, NVIDIA[.n] or AUTO (default)")
    add("-hint", "--perf_hint", default="", choices=["throughput", "tput", "cumulative_throughput", "ctput", "latency",
                                                     "none"], help="performance hint (default throughput)")
    add("-api", "--api_type", default="", choices=["sync", "async"], help="default async, sync for -hint latency")
    add("-niter", "--number_iterations", type=_natural, metavar="N", help="iterations; 0 only compiles the model")
    add("-t", "--time", type=_positive, metavar="SECONDS", help="duration (default 60 unless -niter is given)")
    add("-nireq", "--number_infer_requests", type=_positive, metavar="N", help="requests in flight")
    add("-nstreams", "--number_streams", metavar="N", help="set the property NUM_STREAMS")
    add("-b", "--batch_size", type=_positive, metavar="N", help="set the batch dimension of all inputs")
    add("-shape", default="", metavar="SHAPES", help="reshape the model: in1[1,3,224,224],in2[1,4] or [1,3]")
    add("-data_shape", default="", metavar="SHAPES", help="shapes of the data for dynamic inputs; several: [1,8][1,16]")
    add("-layout", default="", metavar="LAYOUTS", help="in1[NCHW],in2[NC] or [NCHW]; N is the batch dimension")
    add("-i", "--paths_to_input", action="append", nargs="+", default=[], metavar="FILE",
        help=".npy or .bin files, NAME:FILE where there are several inputs")
    add("-infer_precision", default="", metavar="TYPE", help="f32, f16 or bf16, or DEVICE:TYPE")
    add("-ip", "--input_precision", metavar="TYPE", help=argparse.SUPPRESS)
    add("-op", "--output_precision", metavar="TYPE", help=argparse.SUPPRESS)
    add("-iop", "--input_output_precision", metavar="TYPES", help=argparse.SUPPRESS)
    add("--mean_values", metavar="VALUES", help=argparse.SUPPRESS)
    add("--scale_values", metavar="VALUES", help=argparse.SUPPRESS)
    add("-nthreads", "--number_threads", type=int, metavar="N", help=argparse.SUPPRESS)
    add("-pin", "--infer_threads_pinning", choices=["YES", "NO"], help=argparse.SUPPRESS)
    add("-lfile", "--load_from_file", action="store_true", help=argparse.SUPPRESS)
    add("-extensions", "--extensions", metavar="PATH", help=argparse.SUPPRESS)
    add("-inference_only", "--inference_only", nargs="?", const=True, type=_boolean, metavar="BOOL",
        help="set the inputs once, outside the measured loop (default for static shapes)")
    add("-no_warmup", action="store_true", help="no inference before the measurement")
    add("-pc", "--perf_counts", nargs="?", const=True, default=False, type=_boolean, metavar="BOOL",
        help="print the time of every layer")
    add("-pcsort", "--perf_counts_sort", default="", choices=["no_sort", "sort", "simple_sort"],
        help="print the time of every layer in this order")
    add("-report_type", "--report_type", default="", choices=[NO_COUNTERS, AVERAGE, DETAILED], help="write a report")
    add("-report_folder", "--report_folder", default="", metavar="FOLDER", help="folder of the reports")
    add("-json_stats", "--json_stats", nargs="?", const=True, default=False, type=_boolean, metavar="BOOL",
        help="reports as JSON instead of CSV")
    add("--prompt", type=_positive, default=0, metavar="N",
        help="begin each sequence with a prompt of N tokens, then decode token by token; report both in tokens per "
             "second (one sequence, unless -data_shape has more)")
    add("-latency_percentile", "--latency_percentile", type=_percentile, default=50, metavar="P",
        help="percentile to report instead of the median")
    add("--trace", default="", metavar="FILE.json",
        help="write a timeline of the layers for chrome://tracing or Perfetto; times every layer, as -pc does")
    add("-exec_graph_path", "--exec_graph_path", default="", metavar="FILE.xml", help="write the runtime model")
    add("-cdir", "--cache_dir", default="", metavar="FOLDER", help="set the property CACHE_DIR")
    add("-dump_config", default="", metavar="FILE.json", help="write the properties that were set")
    add("-load_config", default="", metavar="FILE.json", help="read properties: {device: {name: value}}")


def layouts(text: str) -> dict[str, str]:
    """Return layouts by input name ("" if there is none) from ``in1[NCHW],[NC]``. Raises ValueError for other text."""
    layout_by_name = {}
    for part in filter(None, text.replace("]", "] ").replace(",", " ").split()):
        name, separator, layout = part.rstrip("]").partition("[")
        if not separator or not part.endswith("]"):
            raise ValueError(f"cannot read the layout {part!r}: write [NCHW] or name[NCHW]")
        layout_by_name[name] = layout
    return layout_by_name


def given_flags(args: argparse.Namespace, parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Return the flags that differ from their defaults, with their values as text."""
    return [(name, str(value)) for name, value in vars(args).items()
            if name not in ("run", "command", "parser") and value != parser.get_default(name)]


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative: {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive: {text}")
    return value


def _percentile(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"must be between 1 and 100: {text}")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "1", "yes", "false", "0", "no"):
        raise argparse.ArgumentTypeError(f"must be true or false: {text}")
    return text.lower() in ("true", "1", "yes")


def requested_config(args: argparse.Namespace) -> dict[str, Any]:
    """Return the properties of the compiled model that the flags set."""
    config: dict[str, Any] = {}
    hint = HINT_ALIASES.get(args.perf_hint, args.perf_hint)
    if hint != "none":
        config["PERFORMANCE_HINT"] = hint.upper()
    if args.number_streams:
        config["NUM_STREAMS"] = int(args.number_streams.rpartition(":")[2])
    if args.infer_precision:
        config["INFERENCE_PRECISION_HINT"] = args.infer_precision.rpartition(":")[2]
    if args.cache_dir:
        config["CACHE_DIR"] = args.cache_dir
    if args.perf_counts or args.perf_counts_sort or args.trace or args.report_type in (AVERAGE, DETAILED):
        config["PERF_COUNT"] = True
    return config
