"""Completions of the emulated accelerator: a pure function of the prompt and the options.

Tokens are counted by one simple rule: a token is one whitespace-separated word of the message
contents; roles cost nothing. No tokenizer is involved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message
from rag_accel.errors import ConfigError, EngineOutputError

Respond = Callable[[tuple[Message, ...]], str]

DEFAULT_MAX_TOKENS = 64
MAX_TOKENS = 131_072

_WORD = re.compile(r"\s*\S+(?:\s+\Z)?")
_WORDS = (
    "the a of in to and for with on by from as at that this these each other first last "
    "answer question document passage source index query vector score rank list token model "
    "layer system request result figure table value method search cluster graph path node edge "
    "memory cache batch step time order length context evidence reason claim fact record "
    "is was has shows gives finds reads keeps holds means"
)
_VOCABULARY = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Script:
    """A completion before it is timed: ``pieces`` join to its text, one token each."""

    pieces: tuple[str, ...]
    prompt_tokens: int
    finish_reason: str

    def output(self) -> GenerationOutput:
        """Return the finished completion."""
        return GenerationOutput(
            text="".join(self.pieces),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.pieces),
            finish_reason=self.finish_reason,
        )


def write_script(
    request: GenerationInput, respond: Respond | None = None, *, default_max_tokens: int
) -> Script:
    """Write the whole completion of ``request``.

    ``respond`` must be pure; without it the answer is ``max_tokens`` words seeded by the prompt.
    What ``respond`` raises passes through. Raises ConfigError on a bad ``max_tokens`` and
    EngineOutputError when ``respond`` returns anything but text.
    """
    limit = _max_tokens(request)
    if respond is None:
        text = pseudo_answer(request, default_max_tokens if limit is None else limit)
    else:
        text = _ask(respond, request.messages)
    text = _cut_at_stop(text, request.stop)
    pieces = split_tokens(text)
    kept = pieces[: limit or MAX_TOKENS]
    reason = "length" if len(kept) < len(pieces) else "stop"
    return Script(kept, count_tokens(request.messages), reason)


def pseudo_answer(request: GenerationInput, num_words: int) -> str:
    """Return ``num_words`` words seeded by messages and options; a shorter one is a prefix."""
    turns = [[message.role, message.content] for message in request.messages]
    seed = json.dumps([turns, dict(request.options)], sort_keys=True, default=_type_name)
    words: list[str] = []
    for block in range(-(-num_words // 32)):
        digest = hashlib.sha256(f"{block}:{seed}".encode()).digest()
        words.extend(_VOCABULARY[byte % len(_VOCABULARY)] for byte in digest)
    return " ".join(words[:num_words])


def split_tokens(text: str) -> tuple[str, ...]:
    """Split into tokens that keep their white space and join to ``text`` again."""
    if not text.strip():
        return (text,) if text else ()
    return tuple(_WORD.findall(text))


def count_tokens(messages: Sequence[Message]) -> int:
    """Count the whitespace-separated words of all contents."""
    return sum(len(message.content.split()) for message in messages)


def shared_prefix_tokens(cached: Sequence[Message], messages: Sequence[Message]) -> int:
    """Count the leading tokens two prompts have in common, which a prefix cache would save."""
    shared = 0
    for old, new in zip(cached, messages, strict=False):
        if old.role != new.role:
            return shared
        old_words, new_words = old.content.split(), new.content.split()
        pairs = zip(old_words, new_words, strict=False)
        shared += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if old_words != new_words:
            return shared
    return shared


def _max_tokens(request: GenerationInput) -> int | None:
    limit = request.max_tokens
    if limit is not None and not 1 <= limit <= MAX_TOKENS:
        raise ConfigError(
            "bad max_tokens", where="GenerationInput", found=limit, valid=f"1 to {MAX_TOKENS}"
        )
    return limit


def _ask(respond: Respond, messages: tuple[Message, ...]) -> str:
    text = respond(messages)
    if not isinstance(text, str):
        raise EngineOutputError(
            "respond() must return text",
            where="emulated device",
            found=type(text).__name__,
            valid="str",
        )
    return text


def _cut_at_stop(text: str, stop: Sequence[str]) -> str:
    found = [at for at in (text.find(mark) for mark in stop if mark) if at >= 0]
    return text[: min(found)] if found else text


def _type_name(value: object) -> str:
    return type(value).__qualname__
