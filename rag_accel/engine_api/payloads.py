"""Payloads and results of engines, one pair for each kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Direction = Literal["out", "in", "both"]


MOST_NUMBER = 2**63 - 1
"""Highest bound in work for a knowledge graph, such as ``fan_out``: what databases can be told."""


@dataclass(frozen=True, slots=True)
class Document:
    """One retrievable text. ``id`` is unique inside its index."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """A document with the score of the stage that chose it (higher is nearer)."""

    document: Document
    score: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's call of a tool. ``arguments`` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn.

    Args:
        role: who says it.
        content: its text.
        tool_calls: calls that an assistant's turn makes.
        tool_call_id: the call that a tool's turn answers.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts that get one vector each. The final value: ``vectors: [len(texts), dim], float32``.

    ``keep`` says that the same texts are likely to come again: an engine may keep their vectors.
    """

    texts: tuple[str, ...]
    role: Literal["query", "document"] = "query"
    keep: bool = False


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search for the ``k`` documents nearest to ``vector: [dim], float32``.

    ``where`` keeps only documents whose metadata equals every given value; ``nprobe`` overrides
    the index's own. The final value is ``tuple[ScoredDocument, ...]``, best first.
    """

    vector: Any
    k: int
    where: Mapping[str, Any] | None = None
    nprobe: int | None = None


@dataclass(frozen=True, slots=True)
class HybridQuery(SearchQuery):
    """A search for the ``k`` documents nearest to ``vector`` and to the words of ``text`` together.

    A search query that also says its text: an engine that searches by vector alone runs it as one,
    with the same ``vector: [dim], float32``, ``k``, ``where`` and ``nprobe``. The final value is
    ``tuple[ScoredDocument, ...]``, best first; its scores are those of the fusion.

    Args:
        text: whose words are looked for.
        weights: how much the rankings by vector and by words count; by default as the engine says.
        depths: how many documents are taken from each of them, at least ``k``; None for either
            leaves it to the engine.
    """

    text: str = field(kw_only=True)
    weights: tuple[float, float] | None = field(default=None, kw_only=True)
    depths: tuple[int | None, int | None] = field(default=(None, None), kw_only=True)


@dataclass(frozen=True, slots=True)
class RerankBatch:
    """Documents to order by relevance to ``query``; the best ``top_n`` of them are wanted."""

    query: str
    documents: tuple[Document, ...]
    top_n: int | None = None


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """Documents for an index, with their ``vectors: [len(documents), dim], float32``."""

    documents: tuple[Document, ...]
    vectors: Any


@dataclass(frozen=True, slots=True)
class LinkQuery:
    """A search for the ``k`` entities of a knowledge graph that are meant, best first.

    Exactly one of the other fields says what is looked for. The final value is a ``Paths`` of no
    hops, which EXPANDING extends.

    Args:
        k: most entities, 0 for none.
        vector: ``[dim], float32``, for the entities with the nearest vectors.
        text: for the entities whose names share most words with it.
        names: for the entities of these names, in their order.
    """

    k: int
    vector: Any = None
    text: str | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ExpandBatch:
    """One hop from the ends of paths. The final value: the paths with those of one hop more.

    Args:
        paths: what the search or the hop before gave.
        relations: names of the relations to follow; ``None`` follows all.
        direction: along edges, against them or both ways.
        fan_out: most edges of one entity in one direction.
        limit: most paths of this hop.
    """

    paths: Any
    relations: tuple[str, ...] | None = None
    direction: Direction = "both"
    fan_out: int = 32
    limit: int = 256


@dataclass(frozen=True, slots=True)
class PruneBatch:
    """A choice of the ``k`` paths nearest to a query by cosine.

    The final value is ``tuple[GraphHit, ...]``, best first, equal scores in the order of the paths.

    Args:
        paths: what the last hop gave.
        vectors: ``[n, dim], float32``, one for each path's text.
        query: ``[dim], float32``.
        k: most paths, 0 for none.
    """

    paths: Any
    vectors: Any
    query: Any
    k: int


@dataclass(frozen=True, slots=True)
class GraphPath:
    """A path through a knowledge graph, by name.

    Args:
        entities: one more than there are relations, each once.
        relations: between two entities each.
        forward: whether each relation is walked from its head to its tail.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    forward: tuple[bool, ...]

    @property
    def text(self) -> str:
        """Return ``a -> r -> b``, or ``a <- r <- b`` where a relation is walked backwards."""
        pieces = [self.entities[0]]
        for relation, entity, forward in zip(
            self.relations, self.entities[1:], self.forward, strict=True
        ):
            arrow = "->" if forward else "<-"
            pieces.append(f" {arrow} {relation} {arrow} {entity}")
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class GraphHit(ScoredDocument):
    """A path that was chosen, as a document whose text is the path's."""

    path: GraphPath


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The span of a retrieved text in a prompt: ``messages[message].content[start:stop]``.

    Args:
        message: which message.
        start: the first character.
        stop: behind the last one.
        document: the id of the document, for reports.
    """

    message: int
    start: int
    stop: int
    document: str = ""


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """The prompt of one completion. ``options`` are sampling options by their OpenAI names.

    The messages are always the whole prompt, also where work names a handle: of what was prefilled
    under the handle an engine reuses only the common prefix. For PARTIAL_PREFILLING they are the
    beginning of a prompt, which may end within a message and within a word. ``chunk_spans``
    are the parts of them that are retrieved texts, in any order; an engine may ignore them.
    ``tools`` are functions that the answer may call, as OpenAI's JSON schemas.
    """

    messages: tuple[Message, ...]
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    chunk_spans: tuple[ChunkSpan, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def has_tools(self) -> bool:
        """Tell whether it offers tools, or has turns that call them or answer such calls."""
        turns = self.messages
        return bool(self.tools) or any(turn.tool_calls or turn.role == "tool" for turn in turns)


@dataclass(frozen=True, slots=True)
class PromptUse:
    """The tokens of a prompt, all of them, by the origin of their attention state.

    Args:
        computed: run through the model for this prompt, also before all of it was known.
        from_prefix: taken over from an earlier prompt with the same beginning.
        from_chunks: taken over from texts and paths encoded before, at other places (FusionRAG
            section 4, DepCache section 4.2).
        recomputed: of those computed, the tokens of such texts.
        preprocessed: tokens of texts whose state was computed offline behind similar ones (section
            3.1), those computed again among them.
        approximate: tokens of texts whose state did not see what stands before them in this prompt,
            those encoded for this very prompt among them.
        documents: tokens of retrieved texts next to a tree of paths, which have the state of the
            whole prompt: they are computed, or from a prefix.
        tree: tokens of relation paths that are computed as a tree (DepCache section 3.1).
        from_tree: of ``from_chunks``, those of such paths.
    """

    computed: int = 0
    from_prefix: int = 0
    from_chunks: int = 0
    recomputed: int = 0
    preprocessed: int = 0
    approximate: int = 0
    documents: int = 0
    tree: int = 0
    from_tree: int = 0

    @property
    def is_exact(self) -> bool:
        """Tell whether the prompt was computed as a whole, or taken over from one that was."""
        return not (self.approximate or self.recomputed or self.from_chunks)

    def __add__(self, other: PromptUse) -> PromptUse:
        return PromptUse(
            self.computed + other.computed,
            self.from_prefix + other.from_prefix,
            self.from_chunks + other.from_chunks,
            self.recomputed + other.recomputed,
            self.preprocessed + other.preprocessed,
            self.approximate + other.approximate,
            self.documents + other.documents,
            self.tree + other.tree,
            self.from_tree + other.from_tree,
        )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token's text and the natural logarithm of its probability."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A finished completion and its token counts.

    Args:
        text: what was generated.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens generated.
        finish_reason: ``stop`` or ``length``, or what a server says.
        use: where the prompt's tokens came from, by an engine that owns its sequences.
        logprobs: of the generated tokens, where asked for.
        weights: what computed it: the model's ``own``, or ``int8``, which is approximate.
        tool_calls: calls of tools that it makes, in place of their text.
        malformed_calls: the text of each call that cannot be read.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = "stop"
    use: PromptUse | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    weights: str = "own"
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of several generations together.

    Args:
        prompt: of their prompts; those of an engine that does not tell count as computed. What a
            request has had computed of a prompt ahead counts as taken over from a prefix.
        completion_tokens: generated.
        generations: how many there were.
        with_int8_weights: how many of these were computed with int8 weights, and so approximately.
    """

    prompt: PromptUse = PromptUse()
    completion_tokens: int = 0
    generations: int = 0
    with_int8_weights: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.prompt + other.prompt,
            self.completion_tokens + other.completion_tokens,
            self.generations + other.generations,
            self.with_int8_weights + other.with_int8_weights,
        )

    @classmethod
    def of(cls, output: GenerationOutput) -> TokenUsage:
        """Return the tokens of one generation."""
        use = output.use or PromptUse(output.prompt_tokens)
        return cls(use, output.completion_tokens, 1, int(output.weights == "int8"))
