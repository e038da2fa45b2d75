"""Prompts of retrieved texts and a question, by messages and by tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rag_accel.engine_api import Document, GenerationInput, Message
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.errors import ConfigError
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.sample import make_questions

SYSTEM = "Answer the question from the passages. Be brief."
BETWEEN = "\n\n"
LEAST_TOKENS = 8

#: The replacement character, which stands for no text.
_BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A user's turn of retrieved texts and then a question, behind a system's turn.

    Args:
        texts: the retrieved texts.
        question: stands behind them.
        system: the system's turn; without text there is none.
    """

    texts: tuple[str, ...]
    question: str
    system: str = SYSTEM

    @property
    def content(self) -> str:
        """Return the user's turn."""
        return BETWEEN.join((*self.texts, self.question))

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the turns."""
        user = Message("user", self.content)
        return (Message("system", self.system), user) if self.system else (user,)

    def generation_input(self, max_tokens: int, *, only_paths: bool = False) -> GenerationInput:
        """Return the input of an engine, with the spans of texts or paths, as drop-ins make it."""
        named = [(str(at), text) for at, text in enumerate(self.texts)]
        asked = GenerationInput(self.messages, max_tokens=max_tokens)
        return locate_chunks(asked, named, only_paths=only_paths)

    def segmented(self, tokenizer: Any, template: str | None = None) -> SegmentedPrompt:
        """Return its tokens, range by range, as an engine that reuses texts has them.

        Args:
            tokenizer: the model's.
            template: a chat template in place of the tokenizer's.

        Raises:
            EngineError: the template refuses the messages.
            ConfigError: no text has a range of its own.
        """
        whole, prompting = self.generation_input(1), Prompting(tokenizer, template=template)
        found = prompting.segmented(whole.messages, whole.chunk_spans, LEAST_TOKENS)
        if found is None:
            prompting.whole(whole.messages)  # says why, if it is refused
            raise ConfigError(
                "no text of a prompt can be told apart in it",
                found=self.question,
                valid=f"texts of {LEAST_TOKENS} tokens or more",
            )
        return found


class TextCutter:
    """Texts of a wanted number of tokens, read out of documents that follow each other.

    Args:
        tokenizer: the model's, of transformers.
        texts: read in a circle.
    """

    def __init__(self, tokenizer: Any, texts: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._pieces = itertools.cycle([*texts])
        self._left: list[int] = []

    def text(self, tokens: int) -> str:
        """Return the next text of so many tokens, in a few cases one more or less."""
        while len(self._left) < tokens:
            self._left += self._tokenizer(next(self._pieces) + "\n", add_special_tokens=False)[
                "input_ids"
            ]
        taken, self._left = self._left[:tokens], self._left[tokens:]
        return self._tokenizer.decode(taken).replace(_BROKEN, "").strip()


def short_prompts(
    tokenizer: Any,
    documents: Sequence[Document],
    count: int,
    tokens: tuple[int, int],
    passages: tuple[int, int],
    seed: int = 0,
) -> list[TextPrompt]:
    """Return prompts about passages of several documents, of which one answers the question.

    Args:
        tokenizer: the model's.
        documents: passages are their beginnings.
        count: of prompts.
        tokens: the least and the most of the passages of a prompt, about.
        passages: the least and the most of a prompt.
        seed: of the choice.
    """
    random = Random(seed)
    return [_short_prompt(tokenizer, documents, tokens, passages, random) for _ in range(count)]


def _short_prompt(
    tokenizer: Any,
    documents: Sequence[Document],
    tokens: tuple[int, int],
    passages: tuple[int, int],
    random: Random,
) -> TextPrompt:
    chosen = random.sample(documents, random.randint(*passages))
    size = random.randint(*tokens) // len(chosen)
    texts = [TextCutter(tokenizer, [document.text]).text(size) for document in chosen]
    about = random.randrange(len(chosen))
    (question,) = make_questions([chosen[about]], 1)
    return TextPrompt(tuple(texts), question.text)
