"""Prompts of retrieved texts and a question, by messages and by tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engine_api import Document, GenerationInput, Message
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.terms import TermScores, terms_of
from rag_accel.errors import ConfigError
from rag_accel.kv.prompt_chunks import locate_chunks
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.sample import make_questions

SYSTEM = "Answer the question from the passages. Be brief."
BETWEEN = "\n\n"
LEAST_TOKENS = 8

Search = Callable[[str], Sequence[str]]
"""Returns the texts that are found for a question, the best first."""

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

    def generation_input(self, max_tokens: int, *, paths_first: bool = False) -> GenerationInput:
        """Return the input of an engine, with the spans of texts or paths, as drop-ins make it."""
        named = [(str(at), text) for at, text in enumerate(self.texts)]
        asked = GenerationInput(self.messages, max_tokens=max_tokens)
        return locate_chunks(asked, named, paths_first=paths_first)

    def segmented(self, tokenizer: Any) -> SegmentedPrompt:
        """Return its ``segments`` by a tokenizer with its own template."""
        return self.segments(Prompting(tokenizer))

    def segments(self, prompting: Prompting) -> SegmentedPrompt:
        """Return its tokens, range by range, as an engine that reuses texts has them.

        Raises:
            EngineError: the template refuses the messages.
            ConfigError: no text has a range of its own.
        """
        whole = self.generation_input(1)
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
            self._left += _ids(self._tokenizer, next(self._pieces))
        taken, self._left = self._left[:tokens], self._left[tokens:]
        return self._tokenizer.decode(taken).replace(_BROKEN, "").strip()


def cut_texts(tokenizer: Any, documents: Sequence[Document], tokens: int) -> list[str]:
    """Return the texts of so many tokens that documents are cut into, one behind the other.

    A text may end in the next document; equal texts are there once.
    """
    texts = [document.text for document in documents]
    total = sum(len(_ids(tokenizer, text)) for text in texts)
    cutter = TextCutter(tokenizer, texts)
    return list(dict.fromkeys(cutter.text(tokens) for _ in range(total // tokens)))


def word_search(texts: Sequence[str], count: int) -> Search:
    """Return a search for the texts that share most words with a question, by BM25."""
    spec = LexicalSpec()
    held = TermScores.of(texts, spec)

    def search(question: str) -> list[str]:
        scores = held.of_query(terms_of(question, spec))
        if scores is None:
            return []
        best: list[int] = np.argsort(-scores, kind="stable")[:count].tolist()
        return [texts[at] for at in best]

    return search


def searched_prompts(documents: Sequence[Document], search: Search, count: int) -> list[TextPrompt]:
    """Return prompts of the texts that a search finds for questions about documents.

    Args:
        documents: in whose words questions are asked.
        search: returns the texts of a prompt in their order.
        count: of prompts; there are fewer where documents have fewer sentences.
    """
    questions = [question.text for question in make_questions(documents, count)]
    return [TextPrompt(tuple(search(question)), question) for question in questions]


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that another one follows."""
    return tokenizer(f"{text}\n", add_special_tokens=False)["input_ids"]
