"""Class Decoder: a model that continues texts, one in a request, or many side by side."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ovgpu.api.core import CompiledModel, Core
from ovgpu.batching import SequenceBatcher
from ovgpu.batching.pools import SharedPools
from ovgpu.batching.sequence_batcher import MAX_SEQUENCES
from ovgpu.batching.smaller_batches import power_of_two
from ovgpu.errors import Error, OpError
from ovgpu.genai.batch import fix_batch
from ovgpu.genai.places import Places, Requests, Sequences
from ovgpu.genai.ranking import add_ranking
from ovgpu.genai.sampling import HISTORY, Array, Sampler, Sampling, add_sampling
from ovgpu.genai.sampling import INPUTS as SAMPLING_INPUTS
from ovgpu.model import Model, Output
from ovgpu.model.ports import port_names
from ovgpu.passes.keep_last_logits import keep_last_logits

LEAST_CANDIDATES = 16  # for a beam: searches with few beams share a form of the decoder
MAX_PROPOSED = 15  # tokens that an assistant proposes: with one more, an inference is still a decode step
COLUMNS = "cache_position"  # input of Mamba: the columns of its states of convolutions that tokens fill
INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx", "token_type_ids", COLUMNS)
EXPORT = "export it with `optimum-cli export openvino --task text-generation-with-past`, which makes one with state"


def find_logits(model: Model, known: Sequence[str] = INPUTS) -> int:
    """Check that a model generates text, and return the index of its output with the logits.

    Raises: Error for a model without state, with other inputs than ``known``, or without logits.
    """
    names = port_names(model.inputs)
    if any(name.startswith("past_key_values") for name in names) or not model.states:
        raise Error(f"the model has no state, so that it cannot remember the text: {EXPORT}")
    others = sorted(set(names) - set(known))
    if others:
        raise Error(
            f"the model has the input{'s' * (len(others) > 1)} {', '.join(others)}: generate knows {', '.join(known)}"
        )
    if "input_ids" not in names:
        raise Error("the model has no input input_ids")
    outputs = port_names(model.outputs)
    if "logits" not in outputs and len(outputs) > 1:
        raise Error(f"the model has no output logits, only {', '.join(outputs)}")
    logits = outputs.index("logits") if "logits" in outputs else 0
    shape = model.outputs[logits].partial_shape
    if shape.rank.is_static and len(shape) != 3:
        raise Error(f"output '{outputs[logits]}' has the shape {shape}: logits have [batch, length, vocabulary]")
    return logits


def prepare(model: Model, penalties: bool, known: Sequence[str] = INPUTS) -> int:
    """Rewrite a model in place so that it chooses tokens, see `add_sampling`. Return the index of the output with them.

    Raises: Error for a model that generates no text, see `find_logits`.
    """
    logits = find_logits(model, known)
    if COLUMNS in port_names(model.inputs) and not convolution_columns(model):
        raise Error(f"the model has the input {COLUMNS}, but no states of convolutions, whose columns that numbers")
    fix_batch(model)
    keep_last_logits(model, logits)
    return add_sampling(model, logits, penalties)


def convolution_columns(model: Model) -> int:
    """Return the number of columns in the states of convolutions; 0 for a model without such states.

    optimum-intel names these states [batch, channels, columns].
    """
    for node in model.ops:
        if node.op.name == "ReadValue" and ".conv." in node.op.variable_id:  # type: ignore[attr-defined]
            shape = node.ports[0].partial_shape
            if shape.rank.is_static and len(shape) == 3 and shape[2].is_static:
                return shape[2].get_length()
    return 0


class DecoderInputs:
    """Inputs of a decoder for a text, or for several of equal length, which grow from call to call.

    ``columns`` are `convolution_columns`. A model that is ``one_by_one`` takes one token at a time after the first
    call, and its mask is for the new tokens alone.
    """

    def __init__(self, ports: Sequence[Output], columns: int = 0, one_by_one: bool = False) -> None:
        self._ports = [
            (i, name, np.dtype(np.int64) if port.element_type.is_dynamic() else port.element_type.storage, _lead(port))
            for i, (name, port) in enumerate(zip(port_names(ports), ports))
            if name not in {**SAMPLING_INPUTS, **HISTORY}
        ]
        self._columns, self.one_by_one = columns, one_by_one
        self._past = 0
        self._ones = np.ones((1, 0))  # grows with the mask

    def drop(self, count: int) -> None:
        """Take back the last tokens."""
        self._past -= count

    def skip(self, count: int) -> None:
        """Continue behind tokens that the decoder has from another text."""
        self._past += count

    def next(self, rows: Sequence[Sequence[int]], parents: Sequence[int] = (0,)) -> dict[int, Array]:
        """Return the arrays by input index, for rows of tokens that follow all earlier ones.

        Each row continues one of the last rows, whose numbers ``parents`` has.
        """
        batch, count = len(rows), len(rows[0])
        begin, self._past = self._past, self._past + count
        arrays: dict[int, Array] = {}
        for index, name, dtype, lead in self._ports:
            if name == "input_ids":
                arrays[index] = np.array(rows, dtype)
            elif name == "attention_mask":
                arrays[index] = self._mask(batch, count if self.one_by_one else self._past, dtype)
            elif name == "position_ids":  # [3, batch, count] in Qwen-VL, whose three positions of a text are equal
                positions = np.arange(begin, self._past, dtype=dtype)[None]
                arrays[index] = np.resize(positions, (*lead, batch, count)) if lead or batch > 1 else positions
            elif name == COLUMNS:  # a prompt fills all columns; later tokens move them, and fill the last one
                arrays[index] = np.arange(self._columns - 1 if begin else 0, self._columns, dtype=dtype)
            else:
                arrays[index] = np.array(parents, dtype) if name == "beam_idx" else np.zeros((batch, count), dtype)
        return arrays

    def _mask(self, batch: int, count: int, dtype: np.dtype[Any]) -> Array:
        """Return ones. Those of one text are the same memory at every call, as they get one more each time."""
        if batch > 1:
            return np.ones((batch, count), dtype)
        if self._ones.shape[1] < count:
            self._ones = np.ones((1, 1 << count.bit_length()), dtype)
        return self._ones[:, :count]


def _lead(port: Output) -> list[int]:
    """Return the axes before [batch, count] of an input; one of dynamic extent has 3 positions."""
    return [d.get_length() if d.is_static else 3 for d in port.partial_shape][:-2]


@dataclass(frozen=True, eq=False)
class Chooser:
    """A compiled form of a decoder. ``output`` is the index of the first of its own outputs.

    `Decoder.chooser` has the tokens there, and then their log probabilities. `Decoder.ranker` has the log probabilities
    of candidates, and then the candidates, unless these are all tokens.
    """

    compiled: CompiledModel
    output: int
    request: Any


class Decoder:
    """Decoder in the forms that generations need. All forms have the same constants, and the same memory for the KV
    caches of texts that share inferences."""

    shares_prompts = True
    """True if equal tokens have equal KV caches, so that texts can share those of their prompts."""

    known: Sequence[str] = INPUTS
    """Names of inputs that a model may have."""

    def __init__(self, model: Model, device: str, properties: Mapping[str, Any], donor: Decoder | None = None) -> None:
        """Compile ``model`` for texts without penalties. It takes the constants of ``donor`` that it has, too, and
        shares the memory of its KV caches, which are alike.

        Raises: Error for a model that `prepare` refuses.
        """
        self._donor = donor
        self._source, self._device, self._properties = model, device, dict(properties)
        self._columns, self._one_by_one = convolution_columns(model), False
        self._choosers: dict[bool, Chooser] = {}  # by whether there are penalties
        self._rankers: dict[int | None, Chooser] = {}  # by the number of candidates
        self._batchers: dict[Chooser, SequenceBatcher | None] = {}
        self._pools: SharedPools = SharedPools() if donor is None else donor._pools
        self._verifier: tuple[Any, Sequence[Output], int] | None = None
        self._making = threading.RLock()
        self._one_by_one = self._takes_one_by_one(self.chooser(penalties=False))

    @property
    def vocabulary(self) -> int:
        """The number of tokens. Raises: Error if the model leaves it open."""
        extent = self._source.outputs[find_logits(self._source, self.known)].partial_shape[2]
        if extent.is_dynamic:
            raise Error("the logits have a vocabulary of unknown size")
        return extent.get_length()

    @property
    def bytes_per_token(self) -> int:
        """The number of bytes of a token in the KV caches, as they are stored; 0 for a model whose states have a fixed
        size."""
        states = self.chooser(penalties=False).compiled._compilation.initial.infos.values()
        return sum(
            state.type.storage.itemsize * prod([extent.get_length() for extent in state.shape if extent.is_static])
            for state in states
            if state.shape.rank.is_static and any(extent.is_dynamic for extent in [*state.shape][1:])
        )

    def chooser(self, penalties: bool) -> Chooser:
        """Return the model that chooses tokens, with the inputs that penalties need or without."""
        with self._making:
            if penalties not in self._choosers:
                model = self._source.clone()
                output = self._prepare(model, penalties)
                compiled = self._compile(model)
                self._choosers[penalties] = Chooser(compiled, output, compiled.create_infer_request())
            return self._choosers[penalties]

    def ranker(self, count: int | None) -> Chooser:
        """Return the model that ranks candidates for beam search: at least ``count`` tokens, or all; see `add_ranking`.

        Its output is that with the log probabilities. Raises: Error for a model whose texts can neither share
        inferences nor be reordered.
        """
        with self._making:
            if count is not None:
                count = power_of_two(max(count, LEAST_CANDIDATES))
                vocabulary = self._source.outputs[find_logits(self._source, self.known)].partial_shape[2]
                if vocabulary.is_dynamic or vocabulary.get_length() <= count:
                    count = None
            if count not in self._rankers:
                model = self._source.clone()
                output = self._prepare_ranking(model, count)
                compiled = self._compile(model)
                ranker = Chooser(compiled, output, compiled.create_infer_request())
                if self._batcher_of(ranker) is None and "beam_idx" not in port_names(model.inputs):
                    del self._batchers[ranker]
                    raise Error("beam search needs a model with the input beam_idx, which reorders its rows")
                self._rankers[count] = ranker
            return self._rankers[count]

    def places(self, chooser: Chooser, alone: bool = False) -> Places:
        """Return places for texts in a form of the decoder. They share inferences, unless they are ``alone`` or the
        model mixes the rows of a batch."""
        batcher = None if alone else self._batcher_of(chooser)
        if batcher is None:
            return Requests(chooser.request, chooser.compiled.create_infer_request)
        return Sequences(batcher)

    def check_several_tokens(self) -> None:
        """Raise Error for a model that takes one token at a time, so that it cannot check proposals."""
        if self._one_by_one:
            raise Error(
                "assisted generation needs models that take several tokens at a time; Mamba and Zamba2 take one"
            )

    def verifier(self) -> Verifier:
        """Return a text whose last tokens can be taken back, which is empty.

        Raises: Error for a model that takes one token at a time.
        """
        self.check_several_tokens()
        with self._making:
            if self._verifier is None:
                model = self._source.clone()
                logits = find_logits(model, self.known)
                fix_batch(model)
                keep_last_logits(model, logits, MAX_PROPOSED + 1)
                compiled = self._compile(model)
                self._verifier = compiled.create_infer_request(), compiled.inputs, logits
            request, ports, logits = self._verifier
            return Verifier(Retractable(request, self.inputs(ports)), logits)

    def _batcher_of(self, chooser: Chooser) -> SequenceBatcher | None:
        """Return the batcher of a form, which the first call makes; None if the model mixes the rows of a batch."""
        with self._making:
            if chooser not in self._batchers:
                try:
                    shared = {COLUMNS: None} if COLUMNS in port_names(chooser.compiled.inputs) else {}
                    self._batchers[chooser] = SequenceBatcher(
                        chooser.compiled, MAX_SEQUENCES, max_wait_ms=0, batch_axes=shared, pools=self._pools
                    )
                except Error:
                    self._batchers[chooser] = None
            return self._batchers[chooser]

    def inputs(self, ports: Sequence[Output]) -> DecoderInputs:
        """Return the inputs of an empty text, or of a batch of empty rows. ``ports`` are those of a compiled form."""
        return DecoderInputs(ports, self._columns, self._one_by_one)

    def _prepare(self, model: Model, penalties: bool) -> int:
        """Rewrite a model in place for `chooser`, and return the index of the output with the tokens."""
        return prepare(model, penalties, self.known)

    def _prepare_ranking(self, model: Model, count: int | None) -> int:
        """Rewrite a model in place for `ranker`, and return the index of the output with the log probabilities."""
        logits = find_logits(model, self.known)
        keep_last_logits(model, logits)
        return add_ranking(model, logits, count)

    def _takes_one_by_one(self, chooser: Chooser) -> bool:
        """Return whether the model takes one token at a time after the prompt, with a mask for it alone.

        Mamba's and Zamba2's do. Zamba2's has the inputs and states of others, so that it is tried with two tokens.
        """
        ports = chooser.compiled.inputs
        if not self._columns or COLUMNS in port_names(ports):
            return self._columns > 0
        inputs, sampler = DecoderInputs(ports), Sampler(ports, Sampling())
        chooser.request.reset_state()
        for after_prompt in (False, True):
            try:
                chooser.request.infer(inputs.next([[0]]) | sampler.next())
            except OpError:  # a longer mask does not fit
                return after_prompt
        return False

    def _compile(self, model: Model) -> CompiledModel:
        core = Core()
        choosers = self._choosers or ({} if self._donor is None else self._donor._choosers)
        core._donors = [one for chooser in choosers.values() for one in chooser.compiled._compilations]
        return core.compile_model(model, self._device, self._properties)


class Retractable:
    """Text whose last tokens can be taken back, which is empty.

    KV caches just become shorter. States of fixed size, such as those of convolutions, return to the last place of
    `keep`, and the next call of `infer` repeats the tokens that stay behind it.
    """

    def __init__(self, request: Any, inputs: DecoderInputs) -> None:
        self._request, self._inputs = request, inputs
        self._session = request._session
        self._since: list[int] = []  # tokens behind the place of `keep`, if there are states of fixed size
        self._repeated: list[int] = []  # tokens that the next call of `infer` repeats
        request.reset_state()
        self.keep()

    def infer(self, tokens: Sequence[int], others: Mapping[int, Array] = MappingProxyType({})) -> Any:
        """Append tokens, and return the outputs. ``others`` are further inputs."""
        tokens = [*self._repeated, *tokens]
        arrays = {**self._inputs.next([tokens]), **others}
        outputs = self._request.infer(arrays, share_inputs=True, share_outputs=True)
        self._repeated = []
        if self._kept:
            self._since += tokens
        return outputs

    def keep(self) -> None:
        """Keep the states of fixed size: later calls of `drop` take back tokens behind this place only."""
        with self._session.backend.active():
            self._kept = self._session.variables.copy_fixed()
        self._since = []

    def drop(self, count: int) -> None:
        """Take back the last tokens."""
        if not count:
            return
        dropped = len(self._since) if self._kept else count
        with self._session.backend.active():
            self._session.variables.drop_tokens(dropped, self._kept)
        self._inputs.drop(dropped)
        self._repeated, self._since = self._since[:-count], []


class Verifier:
    """Text of which a model checks tokens that an assistant proposes."""

    def __init__(self, text: Retractable, logits: int) -> None:
        self._text, self._logits = text, logits

    def step(self, tokens: Sequence[int], count: int) -> Array:
        """Append tokens, and return the logits [count, vocabulary] of the last ones, at most `MAX_PROPOSED` + 1.

        Of these tokens, all but the first may be dropped.
        """
        if count > 1:
            self._text.keep()
        logits: Array = self._text.infer(tokens)[self._logits]
        return logits[0, -count:]

    def drop(self, count: int) -> None:
        """Take back the last tokens."""
        self._text.drop(count)
