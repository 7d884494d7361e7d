"""Run a program with NVIDIA as a device of openvino, without changing it.

    python -m ovgpu.run_with_openvino script.py arguments...
    python -m ovgpu.run_with_openvino -m module arguments...
    python -m ovgpu.run_with_openvino --as AUTO,GPU script.py arguments...

The program runs as it would by ``python script.py`` or ``python -m module``, after `ovgpu.install()`. With ``--as``, or
the environment variable OVGPU_INSTALL_AS, names of openvino's devices (any of AUTO, GPU and CPU) mean an NVIDIA card,
too, for programs that name no other device.

With such names, or if the program or its arguments name NVIDIA, ``import openvino_genai`` imports `ovgpu.genai`. A
line on stderr says so. openvino itself need not be installed then.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

from ovgpu.integrations.openvino import genai, install
from ovgpu.integrations.openvino.devices import replace_names


def main() -> None:
    """Run the program that the command line names."""
    arguments = sys.argv[1:]
    instead_of = os.environ.get("OVGPU_INSTALL_AS", "")
    if arguments[:1] == ["--as"]:
        instead_of, arguments = "".join(arguments[1:2]), arguments[2:]
    as_module = arguments[:1] == ["-m"]
    program = arguments[as_module:]
    if not program or (program[0].startswith("-") and not as_module):
        asked = arguments[:1] in (["-h"], ["--help"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    devices = {name.strip() for name in instead_of.split(",")} - {""}
    replace_names(devices)
    answers = devices or genai.names_card(program[0], program[1:], as_module)
    if answers:
        genai.answer(devices)
    if not answers or importlib.util.find_spec("openvino") is not None:
        install(devices)
    sys.argv = program
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
