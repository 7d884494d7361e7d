"""Tags in prompts, which say where images and videos stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ovgpu.errors import Error


def place_tags(text: str, tag: str, kind: str, first: int, count: int) -> tuple[str, list[int]]:
    """Return a prompt with the model's own tags, and which of ``count`` images or videos each of them stands for.

    ``kind`` is "image" or "video". Tags in the prompt are ``<ov_genai_image_N>``, which count from the begin of the
    chat, ``first`` being the number of the first image of this prompt; or the model's own ones, one for each image. If
    there is none, they go ahead of the prompt.

    Raises: Error for tags of both kinds, numbers of other images, and another number of tags than images.
    """
    universal = re.compile(rf"<ov_genai_{kind}_([0-9]+)>")
    numbers = [int(number) for number in universal.findall(text)]
    own = text.count(tag)
    if numbers and own:
        raise Error(f"the prompt has tags <ov_genai_{kind}_N> and {tag}: only one kind of them can be used")
    for number in numbers:
        if number < first:
            raise Error(f"<ov_genai_{kind}_{number}> is of an earlier prompt of the chat, which tags cannot refer to")
        if number >= first + count:
            raise Error(f"<ov_genai_{kind}_{number}> is not there: the prompt has {count}, the first one is {first}")
    if numbers:
        return universal.sub(lambda _: tag, text), [number - first for number in numbers]
    if own and own != count:
        raise Error(f"the prompt has {own} tags {tag} for {count} {kind}s")
    return text if own else tag * count + text, list(range(count))


def expand_tags(text: str, tag: str, texts: Sequence[str]) -> str:
    """Return a prompt whose tags, in order, are replaced by texts."""
    before, *rest = text.split(tag)
    return before + "".join(new + after for new, after in zip(texts, rest, strict=True))
