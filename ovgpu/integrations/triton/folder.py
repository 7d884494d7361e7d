"""Folders of models for Triton: ``NAME/config.pbtxt`` and ``NAME/VERSION`` with ``model.py`` and the model's files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from ovgpu.errors import Error
from ovgpu.integrations.triton.config import TritonOptions, max_rows, model_config, text
from ovgpu.serve.engines import Engine, EngineOptions, open_engine
from ovgpu.serve.repository import ModelFiles

MODEL_PY = '''"""Runs the model beside this file with ovgpu, which must be installed for Triton's Python."""

from ovgpu.integrations.triton.model import TritonPythonModel  # noqa: F401
'''


def write_folder(repository: Path, files: ModelFiles, version: int, options: TritonOptions) -> tuple[Path, Engine]:
    """Write a version of a model. Return its folder, and an engine that shows how it will run.

    All versions of a model share one ``config.pbtxt``.

    Raises: Error if the version exists, if another version has a different ``config.pbtxt``, or if the model cannot run
    in Triton.
    """
    folder = repository / files.name
    target = folder / str(version)
    if target.exists():
        raise Error(f"{target} exists: choose another --version, or delete it")
    engine, options = _engine(files.path, options)
    try:
        config = text(model_config(files.name, engine, options))
        file = folder / "config.pbtxt"
        if file.exists() and file.read_text(encoding="utf-8") != config:
            raise Error(f"{file} is not what this model and these options need: delete it, or choose another --name")
        new = folder / f".{version}.new"  # Triton must not see a version that is not complete
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        shutil.copyfile(files.path, new / f"model{files.path.suffix}")
        weights = files.path.with_suffix(".bin")
        if weights.exists():
            shutil.copyfile(weights, new / "model.bin")
        (new / "model.py").write_text(MODEL_PY, encoding="utf-8")
        file.write_text(config, encoding="utf-8")
        new.rename(target)
    finally:
        engine.close()
    return target, engine


def _engine(path: Path, options: TritonOptions) -> tuple[Engine, TritonOptions]:
    """Return an engine on the CPU with the ports that Triton will have, and the options with which it was made."""
    if options.device_tensors:
        options = replace(options, batching=False)
    wanted = EngineOptions("CPU", {}, options.batching, options.max_batch_size, options.max_sequences, 0)
    engine = open_engine(path, wanted, lambda run: None)
    if engine.batch_axes is not None and not engine.stateful and not max_rows(engine, options):
        engine.close()  # Triton cannot batch the model: each request runs alone, with any number of rows
        return open_engine(path, replace(wanted, batching=False), lambda run: None), replace(options, batching=False)
    return engine, options
