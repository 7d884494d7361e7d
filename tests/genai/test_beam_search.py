"""Beam search on tables of probabilities."""

from __future__ import annotations

import numpy as np

from ovgpu.genai.beam_search import BeamSearch
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.stops import Stops


def test_a_group_that_ends_still_penalises_later_ones() -> None:
    """In its last step, the first group ends with token 4 and would go on with 1. The second one then avoids 1."""
    config = GenerationConfig(
        max_new_tokens=2, num_beams=2, num_beam_groups=2, diversity_penalty=1.0, num_return_sequences=2, eos_token_id=4
    )
    search = BeamSearch([3], config, Stops(config, None), 2)
    every = np.arange(5)[None]
    search.advance(np.array([[-1.0, -5, -1.5, -6, -7]], np.float32), every)
    assert [beam.tokens for beam in search.beams] == [(0,), (2,)]
    search.advance(np.array([[-9.0, -2, -9, -9, -1], [-9, -1.0, -1.5, -9, -9]], np.float32), every.repeat(2, 0))
    assert [beam.tokens for beam, *_ in search.results()] == [(0, 4), (2, 2)]
