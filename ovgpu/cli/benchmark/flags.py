"""Flags of ``ovgpu benchmark``: all those of OpenVINO's benchmark_app 2026.4, and some more."""

from __future__ import annotations

import argparse
from typing import Any

from ovgpu.api.core import Core
from ovgpu.cli.benchmark.report import AVERAGE, DETAILED, NO_COUNTERS

IGNORED = {  # flags that are accepted without effect, and the reason
    "extensions": "-extensions has no effect: operations are added with @ovgpu.register_op",
    "path_to_cldnn_config": "-c has no effect: it is for OpenVINO's GPU device",
}
TYPES = ("bool", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
HINTS = ("throughput", "tput", "cumulative_throughput", "ctput", "latency", "none")


class _Help(argparse.Action):
    """Print the help and the devices."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.print_help()
        print("\nAvailable target devices:  ", "  ".join(Core().available_devices))
        parser.exit()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to the parser of the command, which has no ``-h`` yet."""
    add = parser.add_argument
    add("-h", "--help", action=_Help, nargs="?", default=argparse.SUPPRESS, help="show this help and the devices")
    add(
        "model",
        nargs="?",
        help="the .xml file of the model, its folder, a file in another format (ONNX, ...), which "
        "openvino reads, or a .blob file that export_model wrote",
    )
    add("-m", "--path_to_model", metavar="MODEL", help="the same as MODEL")
    add(
        "-i",
        "--paths_to_input",
        action="append",
        nargs="+",
        default=[],
        metavar="FILES",
        help="images, .npy and .bin files, or folders of them; NAME:FILE,FILE NAME:FILE for several inputs",
    )
    add("-d", "--target_device", default="AUTO", metavar="DEVICE", help="CPU, NVIDIA[.n] or AUTO (default)")
    add(
        "-hint",
        "--perf_hint",
        default="",
        choices=HINTS,
        help="performance hint (default throughput; latency with -api sync)",
    )
    add("-niter", "--number_iterations", type=_natural, metavar="N", help="iterations; 0 only compiles the model")
    add(
        "-max_irate",
        "--maximum_inference_rate",
        type=float,
        default=0,
        metavar="FPS",
        help="the largest rate, in frames per second; 0 (default) for no limit",
    )
    add("-t", "--time", type=_positive, metavar="SECONDS", help="duration (default 60 unless -niter is given)")
    add("-api", "--api_type", default="", choices=["sync", "async"], help="default async, sync for -hint latency")
    _add_shapes(parser.add_argument_group("shapes").add_argument)
    _add_tuning(parser.add_argument_group("tuning").add_argument)
    _add_preprocessing(parser.add_argument_group("preprocessing").add_argument)
    _add_statistics(parser.add_argument_group("statistics").add_argument)
    own = parser.add_argument_group("beyond benchmark_app").add_argument
    own(
        "--prompt",
        type=_positive,
        default=0,
        metavar="N",
        help="begin each sequence with a prompt of N tokens, then decode token by token; report both in tokens per "
        "second (one sequence, unless -data_shape has more)",
    )
    own(
        "--trace",
        default="",
        metavar="FILE.json",
        help="write a timeline of the layers for chrome://tracing or Perfetto; times every layer, as -pc does",
    )


def _add_shapes(add: Any) -> None:
    add("-b", "--batch_size", default="", metavar="N", help="set the batch dimension of all inputs")
    add(
        "-shape",
        default="",
        metavar="SHAPES",
        help="reshape the model: in1[1,3,224,224],in2[1,4] or [1,3]; ? and -1 are dynamic, 1..8 is a range",
    )
    add("-data_shape", default="", metavar="SHAPES", help="shapes of the data for dynamic inputs; several: [1,8][1,16]")
    add("-layout", default="", metavar="LAYOUTS", help="in1[NCHW],in2[NC] or [NCHW]; N is the batch dimension")


def _add_tuning(add: Any) -> None:
    add("-extensions", "--extensions", metavar="PATHS", help="accepted without effect")
    add("-c", "--path_to_cldnn_config", metavar="PATH", help="accepted without effect")
    add("-cdir", "--cache_dir", default="", metavar="FOLDER", help="set the property CACHE_DIR")
    add(
        "-lfile",
        "--load_from_file",
        nargs="?",
        const=True,
        metavar="",
        help="compile the file without reading it before",
    )
    add("-nireq", "--number_infer_requests", type=_positive, default=0, metavar="N", help="requests in flight")
    add("-nstreams", "--number_streams", metavar="N", help="NUM_STREAMS; needs -hint none; N or DEVICE:N")
    add(
        "-inference_only",
        "--inference_only",
        nargs="?",
        const=True,
        type=_boolean,
        metavar="BOOL",
        help="set the inputs once, outside the measured loop (default for static shapes)",
    )
    add("-no_warmup", action="store_true", help="no inference before the measurement")
    add("-infer_precision", default="", metavar="TYPE", help="f32, tf32, f16 or bf16, or DEVICE:TYPE")
    add(
        "-exec_graph_path",
        "--exec_graph_path",
        default="",
        metavar="FILE.xml",
        help="write the execution graph, with the time of every layer",
    )
    add("-nthreads", "--number_threads", type=int, metavar="N", help="INFERENCE_NUM_THREADS; needs -hint none")
    add("-pin", "--infer_threads_pinning", choices=["YES", "NO"], help="ENABLE_CPU_PINNING; needs -hint none")


def _add_preprocessing(add: Any) -> None:
    add(
        "-ip",
        "--input_precision",
        choices=TYPES,
        metavar="TYPE",
        help="type of all inputs (default: u8 for images, else the model's)",
    )
    add("-op", "--output_precision", choices=TYPES, metavar="TYPE", help="type of all outputs")
    add("-iop", "--input_output_precision", default="", metavar="TYPES", help="types by name: 'input:f16,output:f16'")
    add("--mean_values", default="", metavar="[R,G,B]", help="mean per channel of images, or NAME[R,G,B]")
    add("--scale_values", default="", metavar="[R,G,B]", help="divisor per channel of images, or NAME[R,G,B]")


def _add_statistics(add: Any) -> None:
    add(
        "-latency_percentile",
        "--latency_percentile",
        type=_percentile,
        default=50,
        metavar="P",
        help="percentile to report instead of the median",
    )
    add("-report_type", "--report_type", default="", choices=[NO_COUNTERS, AVERAGE, DETAILED], help="write a report")
    add("-report_folder", "--report_folder", default="", metavar="FOLDER", help="folder of the reports")
    add(
        "-json_stats",
        "--json_stats",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="BOOL",
        help="reports as JSON instead of CSV",
    )
    add(
        "-pc",
        "--perf_counts",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="BOOL",
        help="print the time of every layer",
    )
    add(
        "-pcsort",
        "--perf_counts_sort",
        default="",
        choices=["no_sort", "sort", "simple_sort"],
        help="print the time of every layer and its share, in this order",
    )
    add(
        "-pcseq",
        "--pcseq",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="BOOL",
        help="report the latencies of each group of shapes in -data_shape",
    )
    add("-dump_config", default="", metavar="FILE.json", help="write the properties that were set")
    add("-load_config", default="", metavar="FILE.json", help="read properties: {device: {name: value}}")


def check_flags(args: argparse.Namespace) -> None:
    """Set ``args.model`` and ``args.api_type``. Raises ValueError for flags that contradict each other."""
    args.model = args.path_to_model or args.model
    if not args.model:
        raise ValueError("no model is given: write ovgpu benchmark MODEL, or -m MODEL")
    if args.perf_hint != "none" and (args.number_streams or args.number_threads or args.infer_threads_pinning):
        raise ValueError("-nstreams, -nthreads and -pin need -hint none, because a hint chooses these itself")
    types = args.input_precision or args.output_precision or args.input_output_precision
    if types and args.model.endswith(".blob"):
        raise ValueError("-ip, -op and -iop: the types of a compiled model cannot be changed")
    if args.load_from_file and (args.mean_values or args.scale_values):
        raise ValueError("--mean_values and --scale_values cannot be used with -lfile")
    args.api_type = args.api_type or ("sync" if args.perf_hint == "latency" or args.prompt else "async")
    if args.api_type == "async" and args.prompt:
        raise ValueError("--prompt needs -api sync")
    if args.api_type == "sync" and args.number_infer_requests > 1:
        raise ValueError(f"-nireq {args.number_infer_requests} needs -api async")


def given_flags(argv: list[str]) -> list[tuple[str, str]]:
    """Return the flags of a command line with their last values, as benchmark_app's report lists them."""
    pairs: list[tuple[str, str]] = []
    for argument in argv:
        if argument.startswith("-"):
            name, _, value = argument.partition("=")
            pairs.append((name, value))
        elif pairs:
            pairs[-1] = (pairs[-1][0], argument)
    return pairs


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
    if text.lower() not in ("true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"):
        raise argparse.ArgumentTypeError(f"must be true or false: {text}")
    return text.lower() in ("true", "t", "yes", "y", "1")
