"""Tokenizers in a model's folder: tokenizer.json, which the package tokenizers reads, and the models that
openvino_tokenizers made of one, which openvino's CPU runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from ovgpu._util.extras import install_command
from ovgpu._util.openvino_package import import_own, own_core, package
from ovgpu.errors import Error
from ovgpu.genai.files import read_json, read_rt_info, rt_info_of

Pair = tuple[str, str]
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
PLAIN = {"ids": [-1, -2], "type_ids": [0, 1]}  # template that adds no special tokens


class Tokens(NamedTuple):
    """Tokens of a text or a pair, and the type of each: 1 in the second text of a pair, and mostly 0 elsewhere."""

    ids: list[int]
    types: list[int]


class TokenFile(Protocol):
    """Tokenizer of a folder, without padding. ``max_length`` is its own limit, if it has one."""

    pairs: bool
    max_length: int | None

    def encode(
        self, texts: Sequence[str | Pair], add_special_tokens: bool, max_length: int | None = None
    ) -> list[Tokens]:
        """Return the tokens of each text or pair, cut to ``max_length`` with its special tokens, see `kept_lengths`."""
        ...

    def decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Return the text of each row of tokens. Tokens outside the vocabulary have no text."""
        ...

    def vocabulary(self) -> list[bytes]:
        """Return the text of each token, as UTF-8 or a part of it."""
        ...

    def special(self) -> set[int]:
        """Return the special tokens, which have no text."""
        ...


def open_tokenizer(folder: Path) -> TokenFile:
    """Return the tokenizer of a folder: that in tokenizer.json, or else that in openvino_tokenizer.xml.

    Raises: Error if there is none, it cannot be read, or the package that it needs is missing.
    """
    if (folder / "tokenizer.json").is_file():
        return JsonTokenizer(folder)
    path = folder / "openvino_tokenizer.xml"
    if path.is_file():
        detokenizer = folder / "openvino_detokenizer.xml"
        name = f"{folder} has no tokenizer.json, and its models need"
        return IrTokenizer(name, (str(path),), (str(detokenizer),), read_rt_info(path), *truncation(folder))
    raise Error(
        f"{folder} has no tokenizer, neither tokenizer.json nor openvino_tokenizer.xml. transformers writes the first: "
        f"AutoTokenizer.from_pretrained(NAME).save_pretrained({str(folder)!r})"
    )


def tokenizer_of_models(encoder: tuple[Any, Any], decoder: tuple[Any, Any]) -> tuple[TokenFile, dict[str, Any]]:
    """Return the tokenizer of two models of openvino_tokenizers, and the runtime information of the first one.

    Of each model, there is the text of its XML and a tensor with the contents of its .bin. Raises: RuntimeError if a
    package is missing, or a model cannot be read; TypeError for other values.
    """
    for text, weights in (encoder, decoder):
        if not isinstance(text, str) or not hasattr(weights, "get_byte_size"):
            raise TypeError(
                "Tokenizer takes a folder, or (tokenizer_model, tokenizer_weights, detokenizer_model, "
                "detokenizer_weights): texts of XML, and tensors with the contents of .bin files"
            )
    info = rt_info_of(encoder[0].encode(), "tokenizer_model")
    openvino: Any = package()

    def own(text: str, weights: Any) -> tuple[Any, ...]:
        return text, openvino and openvino.Tensor(np.array(weights.data).reshape(-1).view(np.uint8))

    return IrTokenizer("the models of a tokenizer need", own(*encoder), own(*decoder), info), info


def kept_lengths(lengths: Sequence[int], added: int, max_length: int) -> list[int]:
    """Return how many tokens each of one or two texts keeps beside ``added`` special tokens.

    As in openvino_genai, the longer text loses tokens first; of two that are too long, each keeps half. Raises: Error
    if ``max_length`` is less than ``added``.
    """
    limit = max_length - added
    if limit < 0:
        raise Error(f"max_length must be at least {added}, the number of special tokens, not {max_length}")
    if sum(lengths) <= limit:
        return list(lengths)
    if len(lengths) == 1:
        return [limit]
    kept = min(*lengths, limit // 2)
    return [limit - kept, kept] if lengths[0] >= lengths[1] else [kept, limit - kept]


def truncation(folder: Path) -> tuple[int | None, str]:
    """Return the limit of tokens in tokenizer_config.json, None if there is none, and the side that loses tokens.

    As in openvino_genai, a limit in tokenizer.json has no effect.
    """
    config = read_json(folder / "tokenizer_config.json")
    limit = config.get("model_max_length")
    side = "left" if config.get("truncation_side") == "left" else "right"
    return limit if isinstance(limit, int) and 0 < limit < 2**31 else None, side


class JsonTokenizer:
    """Tokenizer in tokenizer.json."""

    pairs = True

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            tokenizers: Any = import_module("tokenizers")
        except ImportError:
            raise Error(f"{path} needs the package tokenizers: {install_command('genai')}") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as e:  # the package raises no narrower type
            raise Error(f"{path} cannot be read: {e}") from None
        self.max_length, self._cut_side = truncation(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(
        self, texts: Sequence[str | Pair], add_special_tokens: bool, max_length: int | None = None
    ) -> list[Tokens]:
        if max_length is None:
            encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        else:
            encoded = self._encode_cut(texts, add_special_tokens, max_length)
        return [Tokens(encoding.ids, encoding.type_ids) for encoding in encoded]

    def _encode_cut(self, texts: Sequence[str | Pair], add_special_tokens: bool, max_length: int) -> list[Any]:
        groups = [text if isinstance(text, tuple) else (text,) for text in texts]
        parts = iter(
            self._tokenizer.encode_batch([part for group in groups for part in group], add_special_tokens=False)
        )
        encoded = []
        for group in groups:
            own = [next(parts) for _ in group]
            added = self._tokenizer.num_special_tokens_to_add(len(group) > 1) if add_special_tokens else 0
            for part, length in zip(own, kept_lengths([len(part) for part in own], added, max_length)):
                part.truncate(length, direction=self._cut_side)
            encoded.append(self._tokenizer.post_process(*own, add_special_tokens=add_special_tokens))
        return encoded

    def decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        known = [[token for token in row if 0 <= token < 2**32] for row in rows]
        if len(known) == 1:  # without the threads of a batch
            return [self._tokenizer.decode(known[0], skip_special_tokens=skip_special_tokens)]
        texts: list[str] = self._tokenizer.decode_batch(known, skip_special_tokens=skip_special_tokens)
        return texts

    def vocabulary(self) -> list[bytes]:
        of_id = {token: text for text, token in self._tokenizer.get_vocab(True).items()}
        special = {*self._tokenizer.get_added_tokens_decoder()}
        is_byte_level = "ByteLevel" in str(self._tokenizer.decoder)
        return [_bytes(of_id.get(i, ""), is_byte_level and i not in special) for i in range(max(of_id, default=-1) + 1)]

    def special(self) -> set[int]:
        return {token for token, added in self._tokenizer.get_added_tokens_decoder().items() if added.special}


def _bytes(token: str, is_byte_level: bool) -> bytes:
    """Return the bytes that a token of a vocabulary stands for."""
    if is_byte_level and all(character in BYTE_OF for character in token):
        return bytes(BYTE_OF[character] for character in token)
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character in vocabularies of bytes, as GPT-2 numbered them."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_characters()


class IrTokenizer:
    """Tokenizer in two models that openvino_tokenizers made, such as openvino_tokenizer.xml and
    openvino_detokenizer.xml.

    ``encoder`` and ``decoder`` are what `openvino.Core.read_model` takes, ``info`` is the runtime information of the
    first, and ``need`` begins errors about missing packages.
    """

    def __init__(
        self,
        need: str,
        encoder: tuple[Any, ...],
        decoder: tuple[Any, ...],
        info: Mapping[str, Any],
        max_length: int | None = None,
        cut_side: str = "right",
    ) -> None:
        if package() is None:
            raise Error(f"{need} openvino: {install_command('openvino')}")
        try:
            extension = import_own("openvino_tokenizers")._ext_path
        except ModuleNotFoundError:
            raise Error(f"{need} openvino_tokenizers: pip install openvino-tokenizers") from None
        self._core = own_core()
        self._core.add_extension(str(extension))
        self._encoder = self._core.compile_model(self._core.read_model(*encoder), "CPU")
        self._decoder_model = decoder
        self.max_length, self._cut_side = max_length, cut_side
        limit = str(info.get("max_length", ""))
        if limit.isdigit() and int(limit) < 2**31:
            self.max_length = int(limit)
        self._templates = _templates(info)
        self.pairs = "pair" in self._templates
        self._decoders: dict[bool, Any] = {}
        self._encoding, self._decoding = Lock(), Lock()  # a compiled model of openvino has one request for all calls

    def encode(
        self, texts: Sequence[str | Pair], add_special_tokens: bool, max_length: int | None = None
    ) -> list[Tokens]:
        groups = [text if isinstance(text, tuple) else (text,) for text in texts]
        parts = iter(self._encode_plain([part for group in groups for part in group]))
        encoded = []
        for group in groups:
            own = [next(parts) for _ in group]
            template = self._templates.get("pair" if len(group) > 1 else "single") if add_special_tokens else None
            ids = (template or PLAIN)["ids"]
            if max_length is not None:
                added = sum(token >= 0 for token in ids)
                kept = kept_lengths([len(part) for part in own], added, max_length)
                begins = [len(part) - n if self._cut_side == "left" else 0 for part, n in zip(own, kept)]
                own = [part[begin : begin + n] for part, begin, n in zip(own, begins, kept)]
            encoded.append(_joined(template or PLAIN, own))
        return encoded

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without the special ones that the model puts around them."""
        if not texts:
            return []
        inputs = [np.array(texts, dtype=object).astype(str)]
        inputs += [np.array([], dtype=str)] * (len(self._encoder.inputs) - 1)
        with self._encoding:
            found = self._encoder(inputs)
        rows = [ids[mask != 0].tolist() for ids, mask in zip(found["input_ids"], found["attention_mask"])]
        around = self._templates.get("single", PLAIN)["ids"]
        begin = around.index(-1)
        end = len(around) - begin - 1 if "single" in self._templates else 0
        return [row[begin : len(row) - end] for row in rows]

    def decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        with self._decoding:
            decoder = self._decoder(skip_special_tokens)
            return [str(decoder([np.array([row], np.int64).reshape(1, -1)])[0][0]) if len(row) else "" for row in rows]

    def vocabulary(self) -> list[bytes]:
        _, decoder = self._read_decoder()
        begins, ends, chars = (decoder.input(i).get_source_output().get_node().data for i in (1, 2, 3))
        contents = np.asarray(chars).tobytes()
        return [contents[begin:end] for begin, end in zip(begins, ends)]

    def special(self) -> set[int]:
        _, decoder = self._read_decoder()
        if len(decoder.inputs()) <= 4:
            return set()
        return set(decoder.input(4).get_source_output().get_node().data.reshape(-1).tolist())

    def _read_decoder(self) -> tuple[Any, Any]:
        """Return the model that decodes tokens, and its layer with the vocabulary."""
        path, *weights = self._decoder_model
        if not weights and not Path(path).is_file():
            raise Error(f"there is no {path}, which decodes tokens")
        model = self._core.read_model(*self._decoder_model)
        node = next((node for node in model.get_ordered_ops() if node.get_type_name() == "VocabDecoder"), None)
        if node is None:
            name = "the model that decodes tokens" if weights else path
            raise Error(f"{name} has no layer VocabDecoder, which has the vocabulary")
        return model, node

    def _decoder(self, skip_special_tokens: bool) -> Any:
        """Return the model that decodes tokens, compiled so that it leaves out special tokens or not."""
        if skip_special_tokens not in self._decoders:
            model, node = self._read_decoder()
            if not skip_special_tokens and len(node.inputs()) > 4:
                openvino: Any = package()
                node.input(4).replace_source_output(openvino.op.Constant(np.array([], np.int32)).output(0))
            self._decoders[skip_special_tokens] = self._core.compile_model(model, "CPU")
        return self._decoders[skip_special_tokens]


def _templates(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the templates of single texts and pairs in a tokenizer's runtime information: tokens, and their types. -1
    and -2 stand for the texts."""
    try:
        found = json.loads(str(info.get("processed_post_processor_template", "")))
    except ValueError:
        return {}
    return {name: template for name, template in found.items() if -1 in template["ids"]}


def _joined(template: Mapping[str, Any], texts: Sequence[list[int]]) -> Tokens:
    """Return the tokens of one or two texts in a template."""
    joined = Tokens([], [])
    for token, type_ in zip(template["ids"], template["type_ids"]):
        if token >= 0:
            ids = [token]
        else:
            ids = texts[-1 - token] if -token <= len(texts) else []
        joined.ids.extend(ids)
        joined.types.extend([type_] * len(ids))
    return joined
