"""WhisperGenerationConfig: fields, values and rules as recorded from openvino_genai."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ovgpu
from ovgpu.genai import ASRGenerationConfig, GenerationConfig, WhisperGenerationConfig
from tests.genai import config_cases, whisper_config_cases
from tests.genai.record_wheel import WHISPER

RECORD = json.loads(WHISPER.read_text())
FOUND = json.loads(json.dumps(config_cases.outcomes(WhisperGenerationConfig, whisper_config_cases)))


def test_fields() -> None:
    assert config_cases.fields_of(WhisperGenerationConfig()) == RECORD["fields"]


@pytest.mark.parametrize("group", FOUND)
def test_outcomes(group: str) -> None:
    assert FOUND[group] == RECORD[group]


def test_asr_config() -> None:
    """ASRGenerationConfig checks less than its pipeline does."""
    assert config_cases.fields_of(ASRGenerationConfig()) == RECORD["asr_fields"]
    found = config_cases.outcomes(ASRGenerationConfig, whisper_config_cases)["combinations"]
    assert found == RECORD["asr_combinations"] != RECORD["combinations"]
    own = ASRGenerationConfig(context="c", task="translate", max_new_tokens=3).for_whisper()
    assert type(own) is WhisperGenerationConfig and (own.task, own.max_new_tokens) == ("translate", 3)


def test_values_are_copies() -> None:
    config = WhisperGenerationConfig(suppress_tokens=[1], lang_to_id={"<|en|>": 3}, alignment_heads=[[0, 1]])
    config.suppress_tokens.append(2)
    config.lang_to_id["<|de|>"] = 4
    config.alignment_heads.clear()
    assert (config.suppress_tokens, config.lang_to_id) == ([1], {"<|en|>": 3})
    assert config.alignment_heads == [(0, 1)]
    copy = config.copy()
    copy.task = "translate"
    assert type(copy) is WhisperGenerationConfig and config.task is None


def test_errors() -> None:
    config = WhisperGenerationConfig(max_new_tokens=5, lang_to_id={"<|en|>": 3, "<|de|>": 2}, language="fr")
    with pytest.raises(ovgpu.Error, match=r"the model does not know the language 'fr', only <\|de\|>, <\|en\|>"):
        config.validate()
    with pytest.raises(TypeError, match=r"alignment_heads must be a list of pairs \(layer, head\)"):
        config.alignment_heads = [(1, 2, 3)]
    with pytest.raises(ovgpu.Error, match="WhisperGenerationConfig has no field languages, only "):
        config.update_generation_config(languages="en")
    with pytest.raises(ovgpu.Error, match="GenerationConfig has no field language, only "):
        GenerationConfig(language="en")


def test_no_object(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text("[]")
    with pytest.raises(ovgpu.Error, match="has no JSON object"):
        WhisperGenerationConfig(path)


def test_every_field_is_described() -> None:
    text = WhisperGenerationConfig.__doc__ or ""
    own = WhisperGenerationConfig._fields.keys() - GenerationConfig._fields.keys()
    assert own and {name for name in own if f"``{name}``" not in text} == set()
