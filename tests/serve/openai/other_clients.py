"""OpenAI's protocol with clients that others wrote, which need an environment of their own:

    python -m venv E && E/bin/pip install openai==3.57.0 langchain-openai==1.7.4 litellm==1.110.2
    python -m tests.serve.openai.other_clients E/bin/python

They run against a server in this process. Their texts must be those of plain requests, with and without streams.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.genai.generation_cases import make_folder
from tests.harness.servers.serving import serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, chat, completion, texts

OPENAI = """
import asyncio, json, sys
import openai

base, given = sys.argv[1], dict(model="llama", temperature=0, max_tokens=6, extra_body={"ignore_eos": True})
messages, found = [{"role": "user", "content": "hi"}], {}
client = openai.OpenAI(base_url=base, api_key="any", max_retries=0)
assert [model.id for model in client.models.list()] == ["llama"] and client.models.retrieve("llama").owned_by == "ovgpu"
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

async def main():
    client = openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=0)
    answers = await asyncio.gather(*[client.chat.completions.create(messages=messages, **given) for _ in range(8)])
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    found["async chat"] = [answers[0].choices[0].message.content]
    text = ""
    async for event in await client.chat.completions.create(messages=messages, stream=True, **given):
        text += event.choices[0].delta.content or ""
    found["async chat stream"] = [text]

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


def main() -> None:
    """Run the clients, and compare their texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path)
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as folder:
        make_folder("llama", Path(folder) / "llama" / "1")
        with serving(Path(folder), engine={"properties": EXACT}) as server:
            wanted = {
                "chat": texts(server, CHATS, chat()),
                "completion": texts(server, COMPLETIONS, completion(["To be", "a"])),
            }
            for name, program in (("openai", OPENAI), ("langchain-openai", LANGCHAIN), ("litellm", LITELLM)):
                found = _run(python, program, f"http://{server.http}/v1")
                for what, result in found.items():
                    expected = wanted["chat" if "chat" in what else "completion"]
                    assert result == expected, (name, what, result, expected)
                print(f"{name}: {', '.join(found)}")


def _run(python: Path, program: str, base: str) -> dict[str, Any]:
    """Return what a program prints."""
    ended = subprocess.run([python, "-c", program, base], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
