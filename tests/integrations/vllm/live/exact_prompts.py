"""Prompts of random tokens with texts to reuse, and the answers that a reference gives to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from exact_engine import EngineAnswer, difference
from exact_reference import Reference
from served_models import VOCABULARY

from rag_accel.kv.reuse_request import ReuseRequest, ServedReuse

#: The most that two logprobs of one computation differ in float32.
TOLERANCE = 1e-5
#: The least that those of reuse and of full attention do.
TOLD_APART = 1e-4
#: None is a whole number of blocks.
LENGTHS = (77, 130, 64, 101, 53)


@dataclass(frozen=True)
class TextPrompt:
    """A head, texts with tokens between them, and a question.

    Args:
        head: tokens.
        texts: tokens of each.
        gaps: tokens in front of each.
        question: tokens.
    """

    head: tuple[int, ...]
    texts: tuple[tuple[int, ...], ...]
    gaps: tuple[tuple[int, ...], ...]
    question: tuple[int, ...]

    @classmethod
    def random(cls, rng: random.Random, lengths: Sequence[int] = LENGTHS) -> TextPrompt:
        """Return a prompt; the first text stands directly behind the head."""

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(300, VOCABULARY) for _ in range(count))

        gaps = ((), *(tokens(3) for _ in lengths[1:]))
        return cls(tokens(45), tuple(map(tokens, lengths)), gaps, tokens(23))

    def ordered(self, order: Sequence[int]) -> TextPrompt:
        """Return the prompt with its texts in another order."""
        return replace(self, texts=tuple(self.texts[at] for at in order))

    def ids(self) -> list[int]:
        """Return all tokens."""
        found = list(self.head)
        for gap, text in zip(self.gaps, self.texts, strict=True):
            found += [*gap, *text]
        return [*found, *self.question]

    def places(self) -> list[range]:
        """Return the places of its texts."""
        found: list[range] = []
        at = len(self.head)
        for gap, text in zip(self.gaps, self.texts, strict=True):
            found.append(range(at + len(gap), at + len(gap) + len(text)))
            at = found[-1].stop
        return found

    def texts_stop(self) -> int:
        """Return the place behind the last text."""
        return self.places()[-1].stop

    def request(self, reuse: ServedReuse, texts: int | None = None, **options: Any) -> ReuseRequest:
        """Return the request that names the first of its texts, all by default.

        They are encoded behind the head alone, where the options do not say otherwise.
        """
        spans = tuple((place.start, place.stop) for place in self.places()[:texts])
        options = {"recipe": "alone", **options}
        return ReuseRequest(reuse, spans=spans, head=len(self.head), **options)

    def full(self, reference: Reference, answer: EngineAnswer) -> float:
        """Return the difference of an answer to full attention."""
        return self._behind(reference, answer, 0)

    def reused(
        self,
        reference: Reference,
        answer: EngineAnswer,
        rows: Sequence[int] = (),
        texts: int | None = None,
        behind: Sequence[tuple[int, ...]] = (),
    ) -> float:
        """Return the difference of an answer to that over reused states.

        Args:
            reference: the model.
            answer: of the engine.
            rows: places that are computed again.
            texts: the number of first texts that are reused; None for all.
            behind: texts that are encoded behind each other, in this order; the others alone.
        """
        self.assemble(reference, rows, texts, behind)
        return self._behind(reference, answer, self.places()[:texts][-1].stop)

    def assemble(
        self,
        reference: Reference,
        rows: Sequence[int] = (),
        texts: int | None = None,
        behind: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """Put reused states to their places; compute the gaps between them, and rows again."""
        ids = self.ids()
        heads = [(*self.head, *_before(text, behind)) for text in self.texts[:texts]]
        states = [reference.encode(*pair) for pair in zip(heads, self.texts, strict=False)]
        computed = set(range(self.places()[:texts][-1].stop))
        for state, head, place in zip(states, heads, self.places(), strict=False):
            reference.put(state, place.start, len(head))
            computed -= set(place)
        again = sorted(computed | set(rows))
        reference.run([ids[at] for at in again], again)

    def _behind(self, reference: Reference, answer: EngineAnswer, start: int) -> float:
        """Return the difference, with the tokens from a place on computed over those before."""
        ids = self.ids()
        first = reference.run(ids[start:], range(start, len(ids)))[-1]
        return difference(
            answer, first, lambda id, index: reference.run([id], [len(ids) + index])[-1]
        )


def _before(text: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the tokens of the texts before one; none of a text that is not there."""
    before = texts[: texts.index(text)] if text in texts else ()
    return [id for each in before for id in each]
