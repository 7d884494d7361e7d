"""OpenAI's protocol with clients that others wrote, which need an environment of their own:

    python -m venv E && E/bin/pip install openai==3.57.0 langchain-openai==1.7.4 litellm==1.110.2
    python -m tests.serve.openai.other_clients E/bin/python --device emulator

They run against a server in this process, on NumPy or on the emulated card. Their texts must be those of plain
requests, with and without streams. Texts with calls of tools are a script, as tiny models make no calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ovgpu.genai.enums import GenerationFinishReason
from ovgpu.serve.openai import choices
from tests.genai.generation_cases import make_folder
from tests.genai.whisper_model import make_folder as make_whisper
from tests.genai.whisper_model import sound
from tests.harness import cuda
from tests.harness.servers.serving import serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, answer, chat, completion, form, texts
from tests.serve.openai.test_audio import wav
from tests.serve.openai.test_messages import Scripted

SPEECH = "audio/transcriptions"

OPENAI = """
import asyncio, json, sys
import openai

base, speech, given = *sys.argv[1:], dict(model="llama", temperature=0, max_tokens=6, extra_body={"ignore_eos": True})
messages, found = [{"role": "user", "content": "hi"}], {}
client = openai.OpenAI(base_url=base, api_key="any", max_retries=0)
assert [model.id for model in client.models.list()] == ["llama", "whisper"]
assert client.models.retrieve("llama").owned_by == "ovgpu"
answer = client.chat.completions.create(messages=messages, **given)
assert answer.usage.completion_tokens == 6 and answer.choices[0].finish_reason == "length"
found["chat"] = [answer.choices[0].message.content]
streamed = dict(given, stream=True, stream_options={"include_usage": True})
events = [*client.chat.completions.create(messages=messages, **streamed)]
assert events[-1].usage.completion_tokens == 6
found["chat stream"] = ["".join([e.choices[0].delta.content or "" for e in events if e.choices])]
with client.chat.completions.stream(messages=messages, **given) as stream:
    found["chat stream helper"] = ["".join([event.delta for event in stream if event.type == "content.delta"])]
answer = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=1, n=2, **given)
assert len(answer.choices) == 2 and len(answer.choices[1].logprobs.content) == 6
found["chat n"] = [choice.message.content for choice in answer.choices[:1]]
answer = client.completions.create(prompt=["To be", "a"], **given)
found["completion"] = [choice.text for choice in answer.choices]
parts = {0: "", 1: ""}
for event in client.completions.create(prompt=["To be", "a"], stream=True, **given):
    parts[event.choices[0].index] += event.choices[0].text
found["completion stream"] = [*parts.values()]
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "boolean"}}}
answer = client.chat.completions.create(messages=messages, tools=[tool], tool_choice="required", model="llama", seed=1)
(call,) = answer.choices[0].message.tool_calls
assert call.function.name == "f" and isinstance(json.loads(call.function.arguments), bool)
for fields, kind in (
    ({"model": "none"}, openai.NotFoundError),
    ({"temperature": -1}, openai.BadRequestError),
    ({"extra_body": {"suffix": "x"}}, openai.BadRequestError),
):
    try:
        client.chat.completions.create(messages=messages, **{**given, **fields})
    except kind as error:
        assert error.body["message"] and error.type == "invalid_request_error", error.body
    else:
        raise AssertionError(fields)
with client.chat.completions.create(messages=messages, stream=True, **{**given, "max_tokens": 200}) as stream:
    next(iter(stream))  # closed here

asked = dict(model="whisper", file=open(speech, "rb"))
found["transcription"] = [client.audio.transcriptions.create(**asked).text]
events = [*client.audio.transcriptions.create(stream=True, **asked)]
assert events[-1].type == "transcript.text.done"
found["transcription stream"] = ["".join([e.delta for e in events if e.type == "transcript.text.delta"])]
granularities = dict(timestamp_granularities=["word", "segment"])
answer = client.audio.transcriptions.create(response_format="verbose_json", **granularities, **asked)
assert answer.words and answer.segments[0].start < answer.segments[0].end and answer.duration == 1.3, answer
found["transcription verbose"] = [answer.text]
assert "-->" in client.audio.transcriptions.create(response_format="srt", **asked)
assert client.audio.translations.create(**asked).text
try:
    client.audio.transcriptions.create(model="whisper", file=b"no audio")
except openai.BadRequestError as error:
    assert error.param == "file", error
else:
    raise AssertionError("a file without audio")

async def main():
    client = openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=0)
    answers = await asyncio.gather(*[client.chat.completions.create(messages=messages, **given) for _ in range(8)])
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    found["chat async"] = [answers[0].choices[0].message.content]
    text = ""
    async for event in await client.chat.completions.create(messages=messages, stream=True, **given):
        text += event.choices[0].delta.content or ""
    found["chat async stream"] = [text]

asyncio.run(main())
print(json.dumps(found))
"""

LANGCHAIN = """
import asyncio, json, sys
from langchain_openai import ChatOpenAI, OpenAI

given = dict(base_url=sys.argv[1], api_key="any", model="llama", temperature=0, max_tokens=6, max_retries=0)
given["extra_body"] = {"ignore_eos": True}
model, found = ChatOpenAI(**given), {}
answer = model.invoke("hi")
assert answer.usage_metadata["output_tokens"] == 6 and answer.response_metadata["finish_reason"] == "length"
found["chat"] = [answer.content]
found["chat stream"] = ["".join([part.content for part in model.stream("hi")])]
found["chat batch"] = [answer.content for answer in model.batch(["hi"] * 4)][:1]
found["chat async"] = [asyncio.run(model.ainvoke("hi")).content]
forced = model.bind_tools([{"type": "function", "function": {"name": "f", "description": "x", "parameters": {
    "type": "object", "properties": {}}}}], tool_choice="auto").invoke("hi")
assert isinstance(forced.content, str)
texts = OpenAI(**given)
found["completion"] = [texts.invoke("To be"), texts.invoke("a")]
found["completion stream"] = ["".join(texts.stream("To be")), "".join(texts.stream("a"))]
print(json.dumps(found))
"""

LITELLM = """
import asyncio, json, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.telemetry = False
given = dict(api_base=sys.argv[1], api_key="any", temperature=0, max_tokens=6, ignore_eos=True)
chat = dict(model="openai/llama", messages=[{"role": "user", "content": "hi"}], **given)
text = dict(model="text-completion-openai/llama", **given)
found = {}
answer = litellm.completion(**chat)
assert answer.usage.completion_tokens == 6 and answer.choices[0].finish_reason == "length"
found["chat"] = [answer.choices[0].message.content]
found["chat stream"] = ["".join([e.choices[0].delta.content or "" for e in litellm.completion(stream=True, **chat)])]
found["chat async"] = [asyncio.run(litellm.acompletion(**chat)).choices[0].message.content]
found["completion"] = [litellm.text_completion(prompt=prompt, **text).choices[0].text for prompt in ("To be", "a")]
try:
    litellm.completion(**{**chat, "model": "openai/none"})
except litellm.NotFoundError:
    pass
else:
    raise AssertionError("a model that is not there")
print(json.dumps(found))
"""


OPENAI_TOOLS = """
import json, sys
import openai

tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
asked = dict(model="llama", messages=[{"role": "user", "content": "hi"}], tools=[tool], max_tokens=60)
client, found = openai.OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0), {}
whole = client.chat.completions.create(**asked).choices[0]
with client.chat.completions.stream(**asked) as stream:
    streamed = stream.get_final_completion().choices[0]
for name, choice in (("calls", whole), ("calls stream", streamed)):
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Well.", choice
    found[name] = [[call.function.name, json.loads(call.function.arguments)] for call in choice.message.tool_calls]
print(json.dumps(found))
"""

LANGCHAIN_TOOLS = """
import json, sys
from langchain_openai import ChatOpenAI

tool = {"type": "function", "function": {"name": "f", "description": "x", "parameters": {
    "type": "object", "properties": {}}}}
model = ChatOpenAI(base_url=sys.argv[1], api_key="any", model="llama", max_retries=0, max_tokens=60).bind_tools([tool])
first, *parts = model.stream("hi")
for part in parts:
    first += part
found = {"calls": model.invoke("hi"), "calls stream": first}
print(json.dumps({
    name: [[call["name"], call["args"]] for call in answer.tool_calls] for name, answer in found.items()
}))
"""

LITELLM_TOOLS = """
import json, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.telemetry = False
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
asked = dict(api_base=sys.argv[1], api_key="any", tools=[tool], max_tokens=60)
asked |= dict(model="openai/llama", messages=[{"role": "user", "content": "hi"}])
parts = [*litellm.completion(stream=True, **asked)]
found = {"calls": litellm.completion(**asked), "calls stream": litellm.stream_chunk_builder(parts)}
print(json.dumps({
    name: [[c.function.name, json.loads(c.function.arguments)] for c in answer.choices[0].message.tool_calls]
    for name, answer in found.items()
}))
"""

PROGRAMS = {"openai": OPENAI, "langchain-openai": LANGCHAIN, "litellm": LITELLM}
TOOLS = {"openai": OPENAI_TOOLS, "langchain-openai": LANGCHAIN_TOOLS, "litellm": LITELLM_TOOLS}
SCRIPT = 'Well.<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>\n<tool_call>{"name": "f"}</tool_call>'


def main() -> None:
    """Run the clients, and compare their texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path)
    parser.add_argument("--device", choices=("cpu", "emulator", "cuda"), default="cpu")
    options = parser.parse_args()
    card = nullcontext("CPU") if options.device == "cpu" else cuda.registered(options.device)
    with tempfile.TemporaryDirectory() as name, card as device:
        folder = Path(name) / "models"
        make_folder("llama", folder / "llama" / "1")
        (folder / "llama" / "ovgpu.toml").write_text('pipeline = { tool_parser = "hermes3" }')
        make_whisper(folder / "whisper" / "1")
        speech = Path(name) / "speech.wav"
        speech.write_bytes(wav(sound(1.3, 5)))
        with serving(folder, device, engine={"properties": EXACT}) as server:
            base = f"http://{server.http}/v1"
            body, headers = form(speech.read_bytes(), model="whisper")
            wanted = {
                "chat": texts(server, CHATS, chat()),
                "completion": texts(server, COMPLETIONS, completion(["To be", "a"])),
                "transcription": [json.loads(answer(server, f"/v1/{SPEECH}", body, **headers)[1])["text"]],
            }
            for client, program in PROGRAMS.items():
                _compare(client, _run(options.python, program, base, str(speech)), wanted)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(choices, "Pieces", Scripted)
                patch.setattr(Scripted, "script", SCRIPT)
                patch.setitem(choices.REASONS, GenerationFinishReason.LENGTH, "stop")
                for client, program in TOOLS.items():
                    _compare(client, _run(options.python, program, base), {"calls": [["f", {"a": "x"}], ["f", {}]]})


def _compare(client: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for what, result in found.items():
        expected = wanted[what.partition(" ")[0]]
        assert result == expected, (client, what, result, expected)
    print(f"{client}: {', '.join(found)}")


def _run(python: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Return what a program prints."""
    ended = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
