"""``ovgpu benchmark``: latency and throughput, with the flags and the report of OpenVINO's benchmark_app."""

from ovgpu.cli.benchmark.command import add_to as add_to
