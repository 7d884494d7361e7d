"""Tokenizer: both kinds of files, compared with what openvino_genai was recorded to return, templates and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer
from tests.genai.make_tokenizer import FOLDER
from tests.genai.record_wheel import PATH
from tests.genai.tokenizer_cases import MESSAGES, outcomes

pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "model"))


@pytest.mark.parametrize("name", ["tokenizer.json", "openvino_tokenizer.xml"])
def test_outcomes(name: str, folder: Path) -> None:
    if name == "openvino_tokenizer.xml":
        pytest.importorskip("openvino_tokenizers")
        (folder / "tokenizer.json").unlink()
    found = json.loads(json.dumps(outcomes(Tokenizer(folder))))
    assert found == json.loads(PATH.read_text())["tokenizer"]
    assert len(found) > 50


def models_of(folder: Path) -> dict[str, Any]:
    """Return the models of a tokenizer in memory, as arguments of `Tokenizer`."""
    found: dict[str, Any] = {}
    for name in ("tokenizer", "detokenizer"):
        found[f"{name}_model"] = (folder / f"openvino_{name}.xml").read_text()
        found[f"{name}_weights"] = ovgpu.Tensor(np.fromfile(folder / f"openvino_{name}.bin", np.uint8))
    return found


def test_models_in_memory() -> None:
    pytest.importorskip("openvino_tokenizers")
    models = models_of(FOLDER)
    assert json.loads(json.dumps(outcomes(Tokenizer(**models)))) == json.loads(PATH.read_text())["tokenizer"]
    assert Tokenizer(*models.values()).chat_template == Tokenizer(FOLDER).chat_template != ""


@pytest.mark.parametrize(
    "changes, kind",
    [
        ({"tokenizer_model": 3}, TypeError),
        ({"tokenizer_weights": b""}, TypeError),
        ({"detokenizer_model": b"<net/>"}, TypeError),
        ({"detokenizer_weights": None}, TypeError),
        ({"tokenizer_model": "no XML"}, RuntimeError),
        ({"detokenizer_model": "<net/>"}, RuntimeError),
    ],
)
def test_wrong_models_in_memory(changes: dict[str, Any], kind: type[Exception]) -> None:
    pytest.importorskip("openvino_tokenizers")
    with pytest.raises(kind):
        Tokenizer(**{**models_of(FOLDER), **changes})


def test_a_tensor_without_a_model_that_decodes() -> None:
    models = models_of(FOLDER)
    with pytest.raises(TypeError, match="Tokenizer takes a folder, or"):
        Tokenizer(models["tokenizer_model"], models["tokenizer_weights"])


def test_tensors_are_decoded() -> None:
    tokenizer = Tokenizer(FOLDER)
    assert tokenizer.decode(ovgpu.Tensor(np.array([[1, 7], [8, 0]]))) == [",", "."]
    for tensor, message in (
        (ovgpu.Tensor(np.array([[1, 7]], np.int32)), r"tokens must be i64 \[batch, length\], not int32 \[1, 2\]"),
        (ovgpu.Tensor(np.array([1, 7])), r"tokens must be i64 \[batch, length\], not int64 \[2\]"),
    ):
        with pytest.raises(ovgpu.Error, match=message):
            tokenizer.decode(tensor)


def test_pairs(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.supports_paired_input()
    pairs = tokenizer.encode([["ab", "c"], ["d", "ef"]])
    np.testing.assert_array_equal(
        pairs.input_ids.data, [[10, 11, 12], [13, 14, 15]]
    )  # the template of pairs has no <s>
    both = tokenizer.encode(["ab", "d"], ["c"])
    np.testing.assert_array_equal(both.input_ids.data, [[10, 11, 12], [13, 12, 0]])
    np.testing.assert_array_equal(both.attention_mask.data, [[1, 1, 1], [1, 1, 0]])
    for prompts, prompts_2, kind, message in (
        (["a", "b"], ["a", "b", "c"], ovgpu.Error, "there are 2 and 3 texts"),
        (["a", "b"], "c", TypeError, "prompts_2 is a list of texts, not 'c'"),
        (["a", ["b", "c"]], None, TypeError, "either texts or pairs of texts"),
        ([["b", "c", "d"]], None, TypeError, "prompts are texts, or pairs of texts"),
    ):
        with pytest.raises(kind, match=message):
            tokenizer.encode(prompts, prompts_2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"max_length": 0, "truncation": True}, "max_length must be greater than 0, not 0"),
        ({"pad_to_max_length": True}, "pad_to_max_length needs max_length"),
    ],
)
def test_lengths_that_make_no_sense(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ovgpu.Error, match=message):
        Tokenizer(FOLDER).encode("abc", **keywords)


def test_special_tokens_without_a_model_of_the_tokenizer(folder: Path) -> None:
    (folder / "openvino_tokenizer.xml").unlink()
    tokenizer = Tokenizer(folder)
    assert [tokenizer.get_bos_token_id(), tokenizer.get_eos_token_id(), tokenizer.get_pad_token_id()] == [1, 2, 0]
    (folder / "config.json").write_text(json.dumps({"bos_token_id": 5, "eos_token_id": [7, 8]}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "padding_side": "left"})
    )
    tokenizer = Tokenizer(folder)
    assert (tokenizer.get_bos_token_id(), tokenizer.get_bos_token()) == (5, "!")
    assert (tokenizer.get_eos_token_id(), tokenizer.get_eos_token()) == (2, "</s>")
    assert (tokenizer.get_pad_token_id(), tokenizer.get_pad_token()) == (2, "</s>")  # as there is none
    assert tokenizer.encode(["a", "ab"]).input_ids.data[0, 0] == 2


def test_where_a_template_comes_from(folder: Path) -> None:
    """The model of the tokenizer comes first, then files, the most specific one first."""
    baked = Tokenizer(folder).chat_template
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer(folder).chat_template == baked
    (folder / "openvino_tokenizer.xml").unlink()
    assert Tokenizer(folder).chat_template == "file"
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = Tokenizer(folder)
    assert tokenizer.chat_template == "named"
    tokenizer.chat_template = "{{ messages[0].content }}!"
    assert tokenizer.get_original_chat_template() == "{{ messages[0].content }}!"
    assert tokenizer.apply_chat_template(ChatHistory(MESSAGES), True) == "hi!"
    tokenizer.set_chat_template("")
    with pytest.raises(ovgpu.Error, match="there is no chat template, neither in"):
        tokenizer.apply_chat_template(MESSAGES, True)
    with pytest.raises(TypeError, match="a chat template is a string, not None"):
        tokenizer.set_chat_template(None)  # type: ignore[arg-type]


def test_templates_of_parts() -> None:
    """They get texts as parts if they show nothing else, as in openvino_genai."""
    tokenizer = Tokenizer(FOLDER)
    parts = "{% for part in messages[0].content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}!"
    assert tokenizer.apply_chat_template(MESSAGES, True, parts) == "hi!"
    either = f"{{% if messages[0].content is string %}}{{{{ messages[0].content }}}}{{% else %}}{parts}{{% endif %}}"
    assert tokenizer.apply_chat_template(MESSAGES, True, either) == "hi"
    assert tokenizer.apply_chat_template(MESSAGES, True, "{{ raise_exception('x') if messages[1] else 'y' }}") == "y"


def test_templates_of_other_models() -> None:
    """Statements and functions that transformers provides, and messages that a template cannot write."""
    tokenizer = Tokenizer(FOLDER)
    template = "{% generation %}{{ messages[0].content }}{% endgeneration %}{% break %}"
    loop = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}{{ strftime_now('%%') }}"
    assert tokenizer.apply_chat_template(MESSAGES, True, loop) == "hi%"
    assert tokenizer.apply_chat_template(MESSAGES, True, template.removesuffix("{% break %}")) == "hi"
    with pytest.raises(ovgpu.Error, match=r"the chat template fails: .*no attribute 'content'"):
        tokenizer.apply_chat_template([{"role": "user"}], True)
    with pytest.raises(ovgpu.Error, match="the chat template fails: can only concatenate str"):
        tokenizer.apply_chat_template([{"role": "user", "content": None}], True, "{{ 'a' + messages[0].content }}")
    with pytest.raises(ovgpu.Error, match=r"the chat template fails: .*unsafe"):
        tokenizer.apply_chat_template(MESSAGES, True, "{{ ''.__class__.__mro__ }}")


def test_history() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": ["a", 1, 2.5, None, True]}]
    history = ChatHistory(messages)
    messages[0]["role"] = "changed"
    history.get_messages()[0]["role"] = "changed"
    assert history.get_messages() == [{"role": "user", "content": ["a", 1, 2.5, None, True]}]
    history.append({"role": "assistant"})
    assert len(history) == 2 and history and history.pop() == {"role": "assistant"}
    history.set_tools([{"name": "f"}])
    history.set_extra_context({"q": "Q"})
    tokenizer = Tokenizer(FOLDER)
    assert tokenizer.apply_chat_template(history, True, "{{ tools[0].name }}{{ q }}") == "fQ"
    assert (history.get_tools(), history.get_extra_context()) == ([{"name": "f"}], {"q": "Q"})
    history.clear()
    with pytest.raises(IndexError, match="the chat has no message"):
        history.pop()
    for wrong in (lambda: history.append(1), lambda: history.set_tools({}), lambda: history.set_messages([{1, 2}])):
        with pytest.raises(TypeError):
            wrong()  # type: ignore[no-untyped-call]
    assert not history and len(history) == 0


@pytest.mark.parametrize("text, message", [("{", "cannot be read"), (None, "has no tokenizer, neither tokenizer.json")])
def test_folders_without_a_tokenizer(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ovgpu.Error, match=message):
        Tokenizer(tmp_path)
    with pytest.raises(ovgpu.Error, match="nothing is no folder"):
        Tokenizer(tmp_path / "nothing")


def test_inputs_take_tensors_and_arrays() -> None:
    inputs = TokenizedInputs(np.array([[1, 2]]), ovgpu.Tensor(np.array([[1, 1]])))
    assert inputs.input_ids.shape == [1, 2] and isinstance(inputs.attention_mask, ovgpu.Tensor)
