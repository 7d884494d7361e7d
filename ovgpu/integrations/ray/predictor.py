"""Class Predictor: a model that maps the batches of a Ray dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ovgpu.api.core import Core
from ovgpu.batching import DynamicBatcher, SequenceBatcher
from ovgpu.compile.devices import is_card, resolve
from ovgpu.integrations.ray.columns import Array, Batch, Columns
from ovgpu.integrations.ray.models import read
from ovgpu.integrations.ray.runners import BatchRunner, Runner, SequenceRunner, SingleRunner


class Predictor:
    """Model for `ray.data.Dataset.map_batches`: its inputs are columns of the dataset, its outputs become columns.

        dataset.map_batches(ovgpu.ray.Predictor, fn_constructor_args=["model.xml"], batch_size=256,
                            num_gpus=1, compute=ray.data.ActorPoolStrategy(size=4))

    ``model`` is a file that every node can read, a result of `ovgpu.ray.share`, or a model. On an actor with a GPU, the
    device AUTO is that GPU.

    ``inputs`` and ``outputs`` map ports, by name or index, to columns, which by default have the names of the ports;
    outputs that ``outputs`` leaves out are not returned. ``constants`` maps inputs that are the same in all rows to
    their value for one row. ``keep`` lists columns of the dataset that are returned as well, by default all that are no
    inputs. Outputs of types that Arrow lacks, such as bf16, become f32.

    A row has no batch axis: for an input [N, 3, 224, 224] a column has elements of shape (3, 224, 224). Rows of
    different shapes run in different inferences. Inferences have up to ``max_batch_size`` rows, and ``requests`` of
    them run in parallel, by default 2 on a card and else 1. The model must compute each row from that row alone; see
    `DynamicBatcher`, which proves this, also for ``batch_axes``.

    If the model has states, a row is a whole sequence of any length, which begins with the initial state. The elements
    of its columns have an axis of steps in front, and so have its outputs. Up to ``max_sequences`` rows run side by
    side; see `SequenceBatcher`.

    With ``batching=False``, any model runs, one row at a time. Values that lack the first axis of their input get a
    batch axis of 1, and each output is returned as the model computes it.

    Raises: RuntimeError for a model that cannot be batched, and in a call for columns that are missing or do not fit.
    """

    def __init__(
        self,
        model: Any,
        device: str | None = None,
        *,
        inputs: Mapping[Any, str] | None = None,
        outputs: Mapping[Any, str] | None = None,
        constants: Mapping[Any, Any] | None = None,
        keep: Sequence[str] | None = None,
        max_batch_size: int = 64,
        max_sequences: int = 64,
        requests: int | None = None,
        batching: bool = True,
        batch_axes: Mapping[Any, int | None] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        source = read(model)
        stateful = any(node.get_type_name() == "ReadValue" for node in source.get_ops())
        self._runner: Runner
        if not batching:
            self._runner = SingleRunner(Core().compile_model(source, device, config), stateful)
        elif stateful:
            self._runner = SequenceRunner(
                SequenceBatcher(source, max_sequences, device, config, batch_axes=batch_axes, decode_strings=None)
            )
        else:
            if requests is None:
                requests = 2 if is_card(resolve(device or "AUTO")) else 1
            self._runner = BatchRunner(
                DynamicBatcher(
                    source,
                    max_batch_size,
                    device,
                    config,
                    max_wait_ms=0,
                    requests=requests,
                    batch_axes=batch_axes,
                    decode_strings=None,
                )
            )
        self._columns = Columns(self._runner.compiled, inputs, outputs, constants or {}, self._runner.optional, keep)

    def __call__(self, batch: Mapping[str, Array]) -> Batch:
        """Run a batch of columns. Return the columns of the outputs, and the columns that are kept."""
        columns, kept = self._columns.inputs(batch)
        outputs = self._runner.run(columns, self._columns.constants, list(self._columns.outputs))
        return {**kept, **{self._columns.outputs[i]: column for i, column in outputs.items()}}

    def close(self) -> None:
        """End the threads of the predictor."""
        self._runner.close()
