"""A plan of the states that a folder gets: of each text alone, and behind its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.engines.llm.local.text.tokens import EncodingInput
from rag_accel.errors import ConfigError
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.neighbours import NeighbourOrder, neighbours
from rag_accel.kv.segments import Segment, SegmentedPrompt

#: Tells whether so many tokens have room in the context and in the pool.
Fits = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class FillText:
    """A text of the corpus.

    Args:
        prompt: with this text alone.
        source: what its state depends on behind the head alone.
        key: of that state.
    """

    prompt: SegmentedPrompt
    source: ChunkSource
    key: bytes

    @property
    def others_key(self) -> bytes:
        """Return the key under which its state behind other texts is looked for."""
        return self.source.behind_others().key(self.segment.ids)

    @property
    def segment(self) -> Segment:
        return self.prompt.chunks[0]

    @property
    def room(self) -> int:
        """Return the tokens that it takes with the head."""
        return len(self.prompt.head) + len(self.segment.ids)


@dataclass(frozen=True, slots=True)
class FillTask:
    """A state that the folder is to have.

    Args:
        text: its text.
        key: its key in the store.
        neighbours: the texts between the head and it.
    """

    text: FillText
    key: bytes
    neighbours: tuple[Segment, ...] = ()

    @property
    def payload(self) -> EncodingInput:
        """Return the input of an engine that computes it."""
        return EncodingInput(prompt=self.text.prompt, neighbours=self.neighbours)


def corpus_of(
    prompts: Iterable[SegmentedPrompt | None], model: str, namespace: str, fits: Fits
) -> list[FillText]:
    """Return the texts of prompts in their order, of equal ones the first.

    Args:
        prompts: with one text each; None for those that are left out.
        model: identifies the model.
        namespace: tenant.
        fits: tells what has room.

    Raises:
        ConfigError: a text has no room; names it by its number, from 1.
    """
    found: dict[bytes, FillText] = {}
    for number, prompt in enumerate(prompts, 1):
        if prompt is None:
            continue
        source = ChunkSource(model, namespace, prompt.head)
        text = FillText(prompt, source, source.key(prompt.chunks[0].ids))
        if not fits(text.room):
            raise ConfigError(
                "a text is longer than the model's context or the pool",
                where=f"text {number}",
                found=f"{text.room} tokens with the head",
                hint="cut it as it is cut for retrieval, or give the pool more bytes",
            )
        found.setdefault(text.key, text)
    return list(found.values())


def tasks_behind(
    corpus: Sequence[FillText],
    vectors: Any,
    count: int,
    *,
    most_tokens: int,
    order: NeighbourOrder,
    fits: Fits,
) -> list[FillTask]:
    """Return the states of texts behind their neighbours; a text without any has no such state.

    Args:
        corpus: the texts.
        vectors: ``[texts, dim]``, float32.
        count: most neighbours of a text.
        most_tokens: most tokens of a text's neighbours together.
        order: of the neighbours.
        fits: tells what has room.

    Raises:
        ConfigError: the vectors are not those of the texts.
    """
    chosen = neighbours(
        vectors,
        count,
        contents=[text.segment.text.strip() for text in corpus],
        tokens=[len(text.segment.ids) for text in corpus],
        room=[_neighbour_room(text, most_tokens, fits) for text in corpus],
        order=order,
    )
    tasks: list[FillTask] = []
    for text, places in zip(corpus, chosen, strict=True):
        before = tuple(corpus[at].segment for at in places)
        if before:
            source = text.source.behind(neighbour.ids for neighbour in before)
            tasks.append(FillTask(text, source.key(text.segment.ids), before))
    return tasks


def _neighbour_room(text: FillText, most: int, fits: Fits) -> int:
    """Return the most tokens that the neighbours of a text may have, to a factor of two."""
    while most > 0 and not fits(text.room + most):
        most //= 2
    return most
