"""GenerationConfig: fields, defaults, conversions and rules, compared with those recorded from openvino_genai."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ovgpu
from ovgpu.genai.enums import StopCriteria
from ovgpu.genai.generation_config import FIELDS, GenerationConfig
from ovgpu.genai.scheduler_config import SchedulerConfig
from tests.genai.config_cases import fields_of, outcomes, plain
from tests.genai.record_wheel import PATH


@cache
def recorded() -> Any:
    return json.loads(PATH.read_text())


def test_fields_and_defaults() -> None:
    assert fields_of(GenerationConfig()) == recorded()["generation_config"]
    methods = {name for name, kind in recorded()["classes"]["GenerationConfig"].items() if kind == "method"}
    assert methods <= {name for name in dir(GenerationConfig) if callable(getattr(GenerationConfig, name))}


@pytest.mark.parametrize("group", ["assignments", "keywords", "combinations", "files"])
def test_outcomes(group: str) -> None:
    """The same values, errors and modes, and the same combinations are refused."""
    found = json.loads(json.dumps(outcomes(GenerationConfig)[group], default=plain))
    assert found == recorded()[group]
    assert len(found) > 20


def test_messages_name_the_field() -> None:
    with pytest.raises(ovgpu.Error, match="GenerationConfig has no field max_tokens, only adapters, apply_chat"):
        GenerationConfig(max_tokens=3)
    with pytest.raises(ovgpu.Error, match=r"stop_strings must be a set of strings, not \['a'\]"):
        GenerationConfig(stop_strings=["a"])
    with pytest.raises(TypeError, match="top_k must be an integer from 0 to 18446744073709551615, not -1"):
        GenerationConfig().top_k = -1
    with pytest.raises(ovgpu.Error, match="adapters must be None or an AdapterConfig, not 1"):
        GenerationConfig(adapters=1)
    with pytest.raises(ovgpu.Error, match=r"top_p must be greater than 0 and at most 1, not 1\.5"):
        GenerationConfig(do_sample=True, top_p=1.5, max_new_tokens=1).validate()
    with pytest.raises(TypeError, match=r"either the path of a generation_config\.json, or fields as keywords"):
        GenerationConfig("generation_config.json", echo=True)


@pytest.mark.parametrize("contents, message", [("{", "cannot be read"), ("[1]", "has no JSON object")])
def test_faulty_files(contents: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(contents)
    with pytest.raises(ovgpu.Error, match=message):
        GenerationConfig(path)
    with pytest.raises(ovgpu.Error, match=r"nothing\.json cannot be read"):
        GenerationConfig(tmp_path / "nothing.json")


def test_a_faulty_keyword_changes_nothing() -> None:
    config = GenerationConfig()
    with pytest.raises(ovgpu.Error, match="temperature must be a number"):
        config.update_generation_config(top_k=3, temperature=None)
    assert fields_of(config) == fields_of(GenerationConfig())


def test_sets_are_copies() -> None:
    config = GenerationConfig(stop_strings={"a"})
    config.stop_strings.add("b")
    other = config.copy()
    other.stop_criteria = StopCriteria.NEVER
    other.set_eos_token_id(7)
    assert config.stop_strings == {"a"} and config.stop_criteria == StopCriteria.HEURISTIC
    assert other.stop_token_ids == {7} and other.eos_token_id == 7 and config.eos_token_id == -1


def test_limits_of_tokens() -> None:
    assert GenerationConfig(max_new_tokens=5, max_length=2).get_max_new_tokens(9) == 5
    assert GenerationConfig(max_length=12).get_max_new_tokens(9) == 3
    with pytest.raises(ovgpu.Error, match="max_length is 9, and the prompt already has 9 tokens"):
        GenerationConfig(max_length=9).get_max_new_tokens(9)


def test_every_field_is_described() -> None:
    text = GenerationConfig.__doc__ or ""
    left_out = {"pruning_ratio", "relevance_weight", "return_omni_outputs"}
    assert {name for name in FIELDS if f"``{name}``" not in text} == left_out


SCHEDULER = """SchedulerConfig {\x20
  max_num_batched_tokens: 18446744073709551615
  num_kv_blocks: 0
  cache_size: 0
  num_linear_attention_blocks: 0
  cache_interval_multiplier: unset
  dynamic_split_fuse: false
  use_cache_eviction: false
  max_num_seqs: 256
  enable_prefix_caching: true
  use_sparse_attention: false
 }"""


def test_scheduler() -> None:
    """Fields, defaults and texts are those of openvino_genai."""
    config = SchedulerConfig()
    config.max_num_batched_tokens, config.enable_prefix_caching, config.dynamic_split_fuse = 2**64 - 1, True, False
    assert config.to_string() == SCHEDULER
    for name, value in (("cache_size", -1), ("cache_size", 1.5), ("enable_prefix_caching", "x")):
        with pytest.raises(TypeError, match=name):
            setattr(config, name, value)
    with pytest.raises(ovgpu.Error, match="does not support use_cache_eviction"):
        config.use_cache_eviction = True
    with pytest.raises(AttributeError):
        config.unknown = 1  # type: ignore[attr-defined]
    config.cache_interval_multiplier = 3
    assert config.copy().cache_interval_multiplier == 3
