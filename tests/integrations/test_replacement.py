"""ovgpu by openvino's name, with openvino beside it and without it; each program in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovgpu._util.openvino_package import HINT
from tests.models.test_models import DATA

from .test_programs import run, site

__all__ = ["site"]

BEGIN = "import ovgpu; ovgpu.replace_openvino()\n"
PROGRAM = f"""
import numpy as np, openvino as ov
from openvino import Core, opset13 as ops
from openvino.preprocess import PrePostProcessor
import openvino.properties.hint as hint
from openvino.frontend import FrontEndManager
assert ov.__name__ == "ovgpu" and issubclass(Core, ov.Core), ov
x = ops.parameter([-1, 3], ov.Type.f32, name="x")
model = ov.Model([ops.relu(ops.add(x, ops.constant(np.float32(1))))], [x], "m")
compiled = Core().compile_model(model, "CPU", {{hint.inference_precision: ov.Type.f32}})
assert compiled([-np.ones((2, 3), np.float32)])[0].sum() == 0
assert type(compiled).__module__.startswith("ovgpu")
print(len(FrontEndManager().get_available_front_ends()) > 2)
compiled = ov.compile_model({str(DATA / "gru" / "model.xml")!r}, "CPU")
print(ov.convert_model.__name__, compiled.outputs[0].any_name != "")
"""


@pytest.mark.parametrize("begin", [BEGIN, "import openvino\n" + BEGIN, BEGIN + BEGIN], ids=range(3))
def test_a_program(begin: str, tmp_path: Path) -> None:
    assert run("-c", begin + PROGRAM, cwd=tmp_path) == "True\nconvert_model True"


@pytest.mark.parametrize("begin", ["", BEGIN, "import ovgpu.opset13\n"], ids=["alone", "and a call", "asked by ovgpu"])
def test_by_the_environment_variable(begin: str, site: Path) -> None:
    """ovgpu itself may import openvino first, in that call or where it hands something over."""
    code = f"import site; site.addsitedir({str(site)!r})\n{begin}{PROGRAM}"
    assert run("-c", code, cwd=site, OVGPU_REPLACE="1") == "True\nconvert_model True"


GENAI = "import openvino_genai, openvino, sys\nprint(openvino_genai.LLMPipeline.__module__, openvino.__name__)"


def test_generation(site: Path) -> None:
    """openvino_genai is ovgpu.genai."""
    expected = "ovgpu.genai.llm_pipeline ovgpu"
    assert run("-c", BEGIN + GENAI, cwd=site) == expected
    code = f"import site; site.addsitedir({str(site)!r})\n{GENAI}"
    assert run("-c", code, cwd=site, OVGPU_REPLACE="1") == expected


@pytest.mark.parametrize(
    "module",
    [
        *("opset1", "opset17", "op", "op.util", "passes", "frontend.onnx", "tools.ovc", "utils.types", "helpers"),
        *("preprocess", "properties.device", "properties.intel_gpu.hint", "exceptions", "_pyopenvino", "experimental"),
    ],
)
def test_modules(module: str, tmp_path: Path) -> None:
    """Modules that ovgpu has, or hands over to openvino, are its own by openvino's name."""
    code = f"{BEGIN}import openvino.{module} as m, sys\nprint(m.__name__, sys.modules['openvino.{module}'] is m)"
    assert run("-c", code, cwd=tmp_path) == f"ovgpu.{module} True"


@pytest.mark.parametrize("module", ["_ov_api", "_op_base", "utils.data_helpers.wrappers", "frontend.tensorflow.utils"])
def test_modules_of_openvino_alone(module: str, tmp_path: Path) -> None:
    code = f"{BEGIN}import openvino.{module} as m\nprint(m.__name__ in ('openvino.{module}', 'ovgpu.{module}'))"
    assert run("-c", code, cwd=tmp_path) == "True"


@pytest.mark.parametrize("module", ["runtime", "runtime.executor", "api", "backends.cuda", "nothing"])
def test_internals_of_ovgpu(module: str, tmp_path: Path) -> None:
    """openvino has no such modules, so that the import fails as it does there."""
    code = f"{BEGIN}\ntry: import openvino.{module}\nexcept ModuleNotFoundError as e: print('no module')"
    assert run("-c", code, cwd=tmp_path) == "no module"


def test_installing_beside_it(tmp_path: Path) -> None:
    code = f"{BEGIN}ovgpu.install('CPU'); ovgpu.uninstall()\nimport openvino as ov\nprint(ov is ovgpu)"
    assert run("-c", code, cwd=tmp_path) == "True"


def test_an_alias_by_hand(tmp_path: Path) -> None:
    """A program that only gives ovgpu openvino's name has what needs no import of a module."""
    code = (
        "import sys, ovgpu; sys.modules['openvino'] = ovgpu\n"
        "import numpy as np, openvino as ov\n"
        "x = ov.opset13.parameter([2], ov.Type.f32)\n"
        "print(ov.compile_model(ov.Model([ov.opset13.abs(x)], [x], 'm'), 'CPU')(-np.ones(2, 'f4'))[0])"
    )
    assert run("-c", code, cwd=tmp_path) == "[1. 1.]"


HIDDEN = """
import sys
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == "openvino":
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hiding())
"""


IMPORTING_THREAD = """
import sys, threading, types
from ovgpu._util import openvino_package

sys.setswitchinterval(1e-6)

def imports():
    number = 0
    while not done.is_set():
        number += 1
        sys.modules[f"imported{number}"] = types
        sys.modules.pop(f"imported{number - 50}", None)

done = threading.Event()
thread = threading.Thread(target=imports)
thread.start()
try:
    for _ in range(300):
        with openvino_package._lock:
            openvino_package._take()
finally:
    done.set()
    thread.join()
print("taken")
"""


def test_threads_that_import_meanwhile(tmp_path: Path) -> None:
    """The modules of the process change while openvino's are looked up among them."""
    assert run("-c", IMPORTING_THREAD, cwd=tmp_path) == "taken"


def test_without_openvino(tmp_path: Path) -> None:
    """The classes that run models are there; what is openvino's says what to install."""
    code = (
        f"{HIDDEN}{BEGIN}import openvino as ov\nfrom openvino import opset13\n"
        f"print(ov.Core().compile_model({str(DATA / 'gru' / 'model.xml')!r}, 'CPU').outputs[0].any_name != '')\n"
        "try: opset13.relu(1)\nexcept ImportError as e: print(e)"
    )
    assert run("-c", code, cwd=tmp_path) == f"True\novgpu.opset13.relu needs openvino: {HINT}"
