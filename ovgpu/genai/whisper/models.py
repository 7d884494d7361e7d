"""Classes Encoder and WhisperDecoder: the two models of Whisper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.batch import fix_batch
from ovgpu.genai.decoder import Decoder, DecoderInputs, find_logits
from ovgpu.genai.ranking import add_ranking
from ovgpu.genai.sampling import Sampler, Sampling, add_sampling, checked_token
from ovgpu.genai.whisper.attention import keep_scores
from ovgpu.genai.whisper.config import WhisperGenerationConfig
from ovgpu.genai.whisper.rules import LIMITS, SUPPRESSED, LanguageRules, TokenRules, add_rules
from ovgpu.model import Model, Output
from ovgpu.model.ports import port_names
from ovgpu.passes.keep_last_logits import keep_last_logits
from ovgpu.types import Dimension, PartialShape

Array = np.ndarray[Any, Any]
FEATURES, HIDDEN = "input_features", "encoder_hidden_states"
INPUTS = ("input_ids", HIDDEN, "beam_idx", "cache_position")


class Encoder:
    """Encoder of windows of speech. ``positions`` is their number in a window, if it is known.

    Raises: Error for a model without the input input_features.
    """

    def __init__(self, path: Path, device: str, properties: Mapping[str, Any]) -> None:
        core = Core()
        model = core.read_model(path)
        if port_names(model.inputs) != [FEATURES] or len(model.outputs) != 1:
            raise Error(f"{path} is no encoder of Whisper, which has an input {FEATURES} and one output")
        fix_batch(model)
        self._request = core.compile_model(model, device, dict(properties)).create_infer_request()
        shape = model.outputs[0].partial_shape
        self.positions = shape[1] if shape.rank.is_static and len(shape) == 3 else Dimension()

    def encode(self, features: Array) -> Array:
        """Return the hidden states [1, positions, width] of features [1, bands, frames].

        They are on the host, where decode steps need all inputs. The decoder uploads them for the first step alone, if
        it keeps what it computes from them.
        """
        hidden: Array = self._request.infer([features])[0]
        return hidden


class WhisperInputs(DecoderInputs):
    """Inputs of a decoder for the text of a window, or for several rows of equal length."""

    def __init__(self, ports: Sequence[Output], hidden: Array, rules: TokenRules) -> None:
        super().__init__([])
        self._indices = {name: i for i, name in enumerate(port_names(ports))}
        self._types = [port.element_type.storage for port in ports]
        self._hidden, self._rules = hidden, rules  # the states are repeated for each row
        self._generated: list[list[int]] | None = None

    def next(self, rows: Sequence[Sequence[int]], parents: Sequence[int] = (0,)) -> dict[int, Array]:
        before, self._generated = self._generated, [[] for _ in rows]
        if before is not None:
            self._generated = [[*before[parent], *row] for row, parent in zip(rows, parents)]
        count = len(rows[0])
        begin, self._past = self._past, self._past + count
        if len(self._hidden) != len(rows):
            self._hidden = np.repeat(self._hidden[:1], len(rows), axis=0)
        values = {
            "input_ids": rows,
            "beam_idx": parents,
            "cache_position": range(begin, self._past),
            HIDDEN: self._hidden,
            SUPPRESSED: self._rules.suppressed(self._generated[0]),
            LIMITS: [[self._rules.limits(row)] for row in self._generated],
        }
        return {i: np.asarray(values[name], self._types[i]) for name, i in self._indices.items() if name in values}


class WhisperDecoder(Decoder):
    """Decoder of windows. `begin` says which one, and the rules for its text."""

    shares_prompts = False

    known = INPUTS

    def __init__(self, path: Path, device: str, properties: Mapping[str, Any], positions: Dimension) -> None:
        """Read and compile the model. ``positions`` are those of the encoder.

        Raises: Error for a model without state, with other inputs than `INPUTS`, or without logits.
        """
        self._positions = positions
        self._scorers: dict[tuple[tuple[int, int], ...], tuple[Any, Sequence[Output]]] = {}  # by heads
        super().__init__(Core().read_model(path), device, properties)

    def begin(self, hidden: Array, config: WhisperGenerationConfig, timestamps: bool) -> None:
        """Take the hidden states of a window [1, positions, width] for the texts that follow."""
        self._hidden = hidden
        self._rules = TokenRules(config, self._vocabulary, timestamps)

    def inputs(self, ports: Sequence[Output]) -> DecoderInputs:
        return WhisperInputs(ports, self._hidden, self._rules)

    def detect_language(self, config: WhisperGenerationConfig) -> int:
        """Return the most likely one of the tokens of languages, for the window of `begin`."""
        chooser = self.chooser(penalties=False)
        ports, rules = chooser.compiled.inputs, LanguageRules(config, self._vocabulary, timestamps=False)
        inputs = WhisperInputs(ports, self._hidden, rules)
        arrays = inputs.next([[config.decoder_start_token_id]]) | Sampler(ports, Sampling()).next()
        chooser.request.reset_state()
        return checked_token(chooser.request.infer(arrays, share_inputs=True)[chooser.output])

    def scores(self, tokens: Sequence[int], heads: Sequence[tuple[int, int]]) -> Array:
        """Return what tokens attend to in the window of `begin` [heads, tokens, positions], f32, before the softmax.

        ``heads`` are pairs of a layer and a head. Raises: Error for layers or heads that the model does not have.
        """
        key = tuple(heads)
        if key not in self._scorers:
            model = self._source.clone()
            self._find_logits(model)
            fix_batch(model)
            keep_scores(model, key)
            compiled = self._compile(model)
            self._scorers[key] = compiled.create_infer_request(), compiled.inputs
        request, ports = self._scorers[key]
        inputs = self.inputs(ports)
        request.reset_state()
        found: Array = request.infer(inputs.next([tokens]), share_inputs=True)[0][0]
        return found

    def _prepare(self, model: Model, penalties: bool) -> int:
        logits = self._find_logits(model)
        fix_batch(model)
        keep_last_logits(model, logits)
        add_rules(model, logits, normalise=False)
        return add_sampling(model, logits, penalties)

    def _prepare_ranking(self, model: Model, count: int | None) -> int:
        logits = self._find_logits(model)
        keep_last_logits(model, logits)
        add_rules(model, logits, normalise=True)
        return add_ranking(model, logits, count, normalise=False)

    def _find_logits(self, model: Model) -> int:
        """Check the model, fix the length of the hidden states, and return the index of the logits."""
        logits = find_logits(model, self.known)
        names = port_names(model.inputs)
        if HIDDEN not in names:
            raise Error(f"the model has no input {HIDDEN}: it is no decoder of Whisper")
        index = names.index(HIDDEN)
        shape = model.inputs[index].partial_shape
        if self._positions.is_static and shape.rank.is_static and len(shape) == 3:
            model.reshape({index: PartialShape([shape[0], self._positions, shape[2]])})
        self._vocabulary = model.outputs[logits].partial_shape[2].get_length()
        return logits
