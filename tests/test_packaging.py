"""Installed files: a wheel contains its kernels, and a source tree finds them beside the package."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from ovgpu.version import OWN

ROOT = Path(__file__).parents[1]
KERNELS = sorted(p.name for p in (ROOT / "cuda_kernels").iterdir())
FIND = "from ovgpu.backends.cuda.sources import folder; print(folder())"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a wheel and an sdist of the tree."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=ROOT, check=True, capture_output=True
    )
    return out


def found_by(path: Path) -> Path:
    """Return the folder in which a process that imports ovgpu from ``path`` finds the kernels."""
    code = f"import sys; sys.path.insert(0, {str(path)!r}); {FIND}"
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_an_installed_wheel_finds_its_kernels_inside(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    assert found_by(tmp_path) == (tmp_path / "ovgpu" / "cuda_kernels").resolve()
    assert sorted(p.name for p in (tmp_path / "ovgpu" / "cuda_kernels").iterdir()) == KERNELS
    assert (tmp_path / "ovgpu" / "py.typed").exists()
    assert not (tmp_path / "tests").exists()
    assert (tmp_path / "ovgpu.pth").read_text().count("\n") == 1
    assert (tmp_path / "_ovgpu_startup.py").exists()


def test_an_sdist_is_a_source_tree_that_finds_them_beside_the_package(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tree,) = tmp_path.iterdir()
    assert found_by(tree) == (tree / "cuda_kernels").resolve()
    assert {"bench", "tests", "README.md", "LICENSE", "pyproject.toml"} <= {p.name for p in tree.iterdir()}


def test_a_checkout_or_an_editable_install_finds_them_beside_the_package() -> None:
    assert found_by(ROOT) == (ROOT / "cuda_kernels").resolve()


def test_the_base_install_stays_small() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement.split(">")[0].split("=")[0] for requirement in project["dependencies"]}
    assert names == {"numpy", "lxml", "ml_dtypes", "rich"}


def test_one_version() -> None:
    """The package's version is the code's, and the changelog begins with what is not released."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == OWN
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## Unreleased"
    assert all(re.fullmatch(r"## \d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
