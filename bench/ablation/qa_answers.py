"""Decide what the emulated model of the suite says: a pure function of the prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from bench.emulated.text import pseudo_answer
from rag_accel.engine_api import GenerationInput, Message

NUM_QUERIES = 3
QUERY_WORDS = 24
SHORTEST, LONGEST = 45, 60

_ASKED = "Question: "
_CUE = "\nQueries:"


@dataclass(frozen=True, slots=True)
class Answers:
    """Question expansions where the prompt ends with ``Queries:``, else answers of made-up words.

    An expansion is three lines of 24 words: the question's, then a passage's that a hash of the
    question picks, so that each query finds something else. An answer is 45 to 60 words; which and
    how many is seeded by the prompt, so that equal answers mean equal prompts.

    Args:
        passages: texts that expansions take words from.
    """

    passages: tuple[str, ...]

    def __call__(self, messages: tuple[Message, ...]) -> str:
        """Return the text of the completion."""
        prompt = messages[-1].content
        if prompt.endswith(_CUE):
            question = prompt.removesuffix(_CUE).rpartition(_ASKED)[2]
            return "\n".join(self._query(question, place) for place in range(NUM_QUERIES))
        num_words = SHORTEST + _seed(prompt) % (LONGEST - SHORTEST + 1)
        return pseudo_answer(GenerationInput(messages), num_words)

    def _query(self, question: str, place: int) -> str:
        passage = self.passages[_seed(f"{place} {question}") % len(self.passages)]
        own = question.split()[: QUERY_WORDS // 2]
        query = " ".join([*own, *_cycled(passage.split(), QUERY_WORDS - len(own))])
        # A first line that ends in a colon introduces a list; the arms would disagree on it.
        return query.rstrip(":")


def _cycled(words: Sequence[str], count: int) -> list[str]:
    return [words[place % len(words)] for place in range(count)] if words else []


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
