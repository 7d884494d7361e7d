"""Texts about images by tiny models, which `record_wheel.py` runs with openvino_genai, and `test_vlm.py` here."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np

PLAIN: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
WIDE, SQUARE, TALL = (40, 60, 0), (30, 30, 1), (90, 25, 2)
"""Height and width of images, and a seed."""
ONE: dict[str, Any] = {"images": [WIDE]}
TWO: dict[str, Any] = {"images": [WIDE, SQUARE]}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("hi", shown, PLAIN) for shown in ({}, ONE, TWO, {"image": TALL}, {"images": TALL}, {"images": []})),
    *(("hi", {"image": WIDE, "images": [SQUARE], "order": order}, PLAIN) for order in ("named", "placed")),
    *(("hi", {**ONE, "order": order}, PLAIN) for order in ("config", "placed")),
    *(("hi", shown, {**PLAIN, "apply_chat_template": False}) for shown in ({}, ONE)),
    *(("", shown, PLAIN) for shown in ({}, ONE)),
    ("What? ", {"images": [(28, 28, 3)]}, PLAIN),
    ("What? ", {"images": [(5, 9, 4), (200, 150, 5), (120, 11, 6)]}, PLAIN),
    *(("hi", {"images": [{"count": n, "size": WIDE}]}, PLAIN) for n in (1, 2)),
    # Tags
    *(
        (text, shown, PLAIN)
        for text in ("a {tag} hi", "a <ov_genai_image_0> hi", "{tag}{tag}", "<ov_genai_image_1>,<ov_genai_image_0>")
        for shown in ({}, ONE, TWO)
    ),
    ("a <ov_genai_image_1> hi", TWO, PLAIN),
    ("<ov_genai_image_0> hi <ov_genai_image_0>", ONE, PLAIN),
    ("<ov_genai_image_0>{tag}", TWO, PLAIN),
    ("<ov_genai_image_x> <ov_genai_video_0>", ONE, PLAIN),
    # Videos
    *(("hi", {"videos": [{"count": n, "size": WIDE}]}, PLAIN) for n in (1, 4, 5)),
    ("{video} or {tag}", {"videos": [{"count": 2, "size": SQUARE}], **ONE}, PLAIN),
    ("hi", {"videos": [{"count": 6, "size": TALL}], "frames": [[1, 4, 5]]}, PLAIN),
    ("hi", {"videos": [{"count": 6, "size": TALL}], "frames": [[1, 6]]}, PLAIN),
    ("hi", {"videos": [{"count": 2, "size": TALL}], "frames": [[], []]}, PLAIN),
    # Ways to choose tokens
    *(
        ("hi", ONE, {**PLAIN, "logprobs": 1, **keywords})
        for keywords in (
            {},
            {"echo": True},
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 0.5},
            {"presence_penalty": 1.5, "frequency_penalty": 0.7},
            {"do_sample": True, "top_k": 1},
            {"do_sample": True, "top_k": 1, "num_return_sequences": 2},
        )
    ),
    *(("hi", ONE, {**PLAIN, "num_beams": 3, "num_return_sequences": n}) for n in (1, 3)),
    ("hi", TWO, {**PLAIN, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "num_return_sequences": 2}),
    ("hi", ONE, {"max_new_tokens": 30, "stop_token_ids": {199, 183, 196, 12}}),
    ("hi", ONE, {"max_new_tokens": 30, "stop_strings": {"g", "c"}, "include_stop_str_in_output": True}),
    ("hi", ONE, {"max_length": 45, "ignore_eos": True}),
    *(("hi", ONE, {**PLAIN, "streamer": kind}) for kind in ("function", "object")),
    ("hi", ONE, {**PLAIN, "streamer": "function", "num_beams": 2}),
    # Errors
    *(("hi", {"images": [{"form": form}]}, PLAIN) for form in ("f32", "2d", "5d")),
    ("hi", ONE, {"max_new_tokens": 0}),
    ("hi", ONE, {**PLAIN, "max_length": 3, "max_new_tokens": 2**64 - 1}),
    ("hi", ONE, {**PLAIN, "do_sample": True, "temperature": -1.0}),
]
"""Prompts, what they show, and keywords of generate(). ``frames`` are the frames_indices of each video."""

ANSWER = {"role": "assistant", "content": "abc"}
CHATS: list[tuple[Any, list[tuple[Any, dict[str, Any], dict[str, Any]]]]] = [
    ("begun", [("hi", ONE, PLAIN), ("and", {}, PLAIN), ("yo", {"images": [SQUARE]}, PLAIN)]),
    ("Be brief", [("{tag}hi", ONE, PLAIN), ("<ov_genai_image_1>", ONE, {**PLAIN, "apply_chat_template": False})]),
    ("begun", [("hi", ONE, PLAIN), ("<ov_genai_image_0>", {}, PLAIN)]),
    ("begun", [("hi", TWO, {"num_beams": 2, **PLAIN}), ("yo", ONE, PLAIN), ("x", {}, PLAIN)]),
    (
        None,
        [
            ([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], ONE, PLAIN),
            ([], {}, PLAIN),
            ([ANSWER, {"role": "user", "content": "and {tag}"}], {"images": [SQUARE]}, PLAIN),
            ([ANSWER, {"role": "user", "content": "<ov_genai_image_2>"}], {"images": [TALL]}, PLAIN),
            ([ANSWER, {"role": "user", "content": "<ov_genai_image_0>"}], {}, PLAIN),
        ],
    ),
    (
        None,
        [
            ([{"role": "user", "content": "a"}, ANSWER, {"role": "user", "content": "b"}], ONE, PLAIN),
            ([ANSWER], {}, PLAIN),
        ],
    ),
    (None, [([{"role": "user", "content": "{tag}"}, ANSWER, {"role": "user", "content": "b"}], TWO, PLAIN)]),
    (
        None,
        [
            ([{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]}], ONE, PLAIN),
            ([ANSWER, {"role": "user", "content": [{"type": "image"}, {"type": "image"}]}], TWO, PLAIN),
            ([ANSWER, {"role": "user", "content": [{"type": "text", "text": "so"}]}], {}, PLAIN),
        ],
    ),
    *(
        (None, [([{"role": "user", "content": content}], ONE, PLAIN)])
        for content in ([{"type": "audio"}], [{"kind": 1}], [{"type": "image"}] * 2)
    ),
    (None, [([], ONE, PLAIN)]),
    (None, [([{"role": "system", "content": "x"}], ONE, PLAIN)]),
    (None, [([{"role": "user", "content": "x"}], ONE, {**PLAIN, "apply_chat_template": False})]),
]
"""Chats: what start_chat() gets, or None for a ChatHistory; and calls of generate(), with the messages that each
adds."""


def cases_of(family: str) -> tuple[list[Any], list[Any]]:
    """Return the cases and the chats of a family: all of two families, for others those about images."""
    if family in ("llava", "qwen2_vl"):
        return CASES, CHATS
    return [case for case in CASES if case[2] is PLAIN and {"images", "videos"} & {*case[1]}], CHATS[:1]


def name_of(case: Any) -> str:
    """Return a case as text."""
    return json.dumps(case, default=lambda value: sorted(value))


def pixels(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """Return an image u8 [height, width, 3] of waves and noise."""
    random = np.random.RandomState(seed)
    row, column = np.linspace(0, 6, height)[:, np.newaxis, np.newaxis], np.linspace(0, 5, width)[:, np.newaxis]
    waves = np.sin(row * random.uniform(0, 3, 3) + column * random.uniform(0, 2, 3) + random.uniform(0, 6, 3))
    noise = random.uniform(-0.2, 0.2, (height, width, 3))
    return (127.5 * (np.clip(waves + noise, -1, 1) + 1)).astype(np.uint8)


def _image(tensor: Any, given: Any) -> Any:
    if isinstance(given, tuple):
        return tensor(pixels(*given))
    if "count" in given:
        frames = [np.roll(pixels(*given["size"]), 7 * n, 1) for n in range(given["count"])]
        return tensor(np.stack(frames))
    image = pixels(*WIDE)
    forms = {"f32": image.astype(np.float32), "2d": image[:, :, 0].copy(), "5d": image[np.newaxis, np.newaxis]}
    return tensor(forms[given["form"]])


def outcomes(genai: Any, tensor: Any, pipeline: Any, tags: dict[str, str], cases: Any = CASES) -> dict[str, Any]:
    """Return the outcome of each case: texts, scores, reasons, numbers of tokens, and what a streamer got; or the
    exception.

    ``genai`` is the module, ``tensor`` the class of its tensors, ``tags`` the model's own tags.
    """
    return {name_of(case): _outcome(genai, tensor, pipeline, tags, *case) for case in cases}


def chats(genai: Any, tensor: Any, pipeline: Any, tags: dict[str, str], cases: Any = CHATS) -> dict[str, Any]:
    """Return the outcomes of each chat."""
    return {name_of(case): _chat(genai, tensor, pipeline, tags, *case) for case in cases}


def _chat(genai: Any, tensor: Any, pipeline: Any, tags: dict[str, str], begin: Any, turns: Any) -> list[Any]:
    history = genai.ChatHistory() if begin is None else None
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if begin is not None:
            pipeline.start_chat(*([] if begin == "begun" else [begin]))
        for asked, shown, keywords in turns:
            if history is not None:
                for message in json.loads(json.dumps(asked).replace("{tag}", tags["tag"])):
                    history.append(message)
            prompt = asked if history is None else history
            found.append(_outcome(genai, tensor, pipeline, tags, prompt, shown, keywords))
        pipeline.finish_chat()
    return found


def _outcome(
    genai: Any, tensor: Any, pipeline: Any, tags: dict[str, str], prompt: Any, shown: Any, keywords: dict[str, Any]
) -> Any:
    log: list[Any] = []

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: Any) -> Any:
            log.append(list(tokens) if isinstance(tokens, list) else [tokens])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    streamers = {"function": log.append, "object": Streamer()}
    keywords = dict(keywords)
    if "streamer" in keywords:
        keywords["streamer"] = streamers[keywords["streamer"]]
    for name in ("images", "videos"):
        if name in shown:
            given = shown[name]
            keywords[name] = (
                [_image(tensor, image) for image in given] if isinstance(given, list) else _image(tensor, given)
            )
    if "image" in shown:
        keywords["image"] = _image(tensor, shown["image"])
    if "frames" in shown:
        keywords["videos_metadata"] = [_metadata(genai, frames) for frames in shown["frames"]]
    places = []
    if shown.get("order") in ("config", "placed"):
        fields = {name: value for name, value in keywords.items() if name in PLAIN}
        keywords = {name: value for name, value in keywords.items() if name not in PLAIN}
        config = genai.GenerationConfig(**fields)
        if shown["order"] == "placed":
            places = [keywords.pop("images"), config]
            keywords.pop("image", None)
        else:
            keywords["generation_config"] = config
    if isinstance(prompt, str):
        prompt = prompt.format(**tags)
    try:
        result = pipeline.generate(prompt, *places, **keywords)
    except (RuntimeError, TypeError) as e:
        return "RuntimeError" if isinstance(e, RuntimeError) else "TypeError"
    metrics = result.perf_metrics
    counts = [metrics.get_num_input_tokens(), metrics.get_num_generated_tokens()]
    raw = metrics.vlm_raw_metrics
    counts += [len(raw.prepare_embeddings_durations), len(raw.vision_encoding_durations)]
    if isinstance(prompt, str):
        counts.append(metrics.get_total_image_slice_count())  # openvino_genai does not count those of a ChatHistory
    if keywords.get("num_return_sequences", 1) > 1 or keywords.get("num_beams", 1) > 1 or keywords.get("stop_strings"):
        del counts[1]  # openvino_genai counts the first token of all texts once
    scores = [round(score, 3) for score in result.scores]
    return [result.texts, scores, [reason.name for reason in result.finish_reasons], counts, log]


def _metadata(genai: Any, frames: list[int]) -> Any:
    metadata = genai.VideoMetadata()
    metadata.frames_indices = frames
    return metadata
