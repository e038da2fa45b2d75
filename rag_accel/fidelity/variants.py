"""The other ways to compute a language model that a check compares with its own forward."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rag_accel.engines.llm.local.model.loading import LoadedModel
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.errors import ConfigError
from rag_accel.fidelity.prompts import TextPrompt, cut_texts, searched_prompts, word_search
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.verdicts import DEPENDENCY, FUSED, INT8, VerdictKind
from rag_accel.sample import read_corpus
from rag_accel.sample.graph_questions import chain_questions
from rag_accel.sample.library_graph import read_library_graph

_PATHS_SYSTEM = "Answer the question from the facts. Be brief."
#: Of generated prompts of paths: entities, and paths of each.
_ENTITIES, _PATHS = 3, 6
#: Of generated prompts: tokens of the texts, room for all else, texts, and documents they are of.
_LENGTHS, _AROUND, _PASSAGES, _CHUNKS = (500, 2000, 5000), 256, 8, 500


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The tokens of a prompt.

    Args:
        own: those that the model's own forward computes.
        ids: those of the variant.
        tree: the tree of relation paths among them, if the variant computes one.
    """

    own: tuple[int, ...]
    ids: tuple[int, ...]
    tree: SegmentedPrompt | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """Another way to compute a model, to be compared with its own forward.

    Args:
        kind: of the verdicts, which names the variant as users write it.
        options: of the engine that computes this way.
        prompts: returns so many prompts of a model where none are given.
        encode: returns a prompt's tokens; ConfigError where there is nothing to compare in it.
        generated: stands for ``prompts`` where those were generated.
    """

    kind: VerdictKind
    options: LocalOptions
    prompts: Callable[[LoadedModel, int], Sequence[TextPrompt]]
    encode: Callable[[Prompting, TextPrompt], PromptTokens]
    generated: str = "prompts"


def fits(loaded: LoadedModel, tokens: int) -> bool:
    """Tell whether a sequence of so many tokens has room."""
    return tokens <= loaded.runner.context and loaded.runner.pool.fits(tokens)


def text_prompts(loaded: LoadedModel, count: int) -> list[TextPrompt]:
    """Return prompts of Python's documentation of the lengths that have room, in their order."""
    documents = read_corpus(_CHUNKS).documents
    lengths = [tokens for tokens in _LENGTHS if fits(loaded, tokens + _AROUND)] or _LENGTHS[:1]
    prompts: list[TextPrompt] = []
    for at, tokens in enumerate(lengths, 1):
        texts = cut_texts(loaded.tokenizer, documents, tokens // _PASSAGES)
        number = count * at // len(lengths) - len(prompts)
        prompts += searched_prompts(documents, word_search(texts, _PASSAGES), number)
    return prompts


def path_prompts(count: int, seed: int = 0) -> list[TextPrompt]:
    """Return prompts of paths of the standard library's graph, one of whose entities is asked of.

    Args:
        count: of prompts; there are fewer where the graph has fewer questions.
        seed: of the choice.
    """
    triples = read_library_graph().triples
    edges: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for head, relation, tail in triples:
        edges[head].append((relation, tail))
    draw = random.Random(seed)
    rich = [head for head, out in edges.items() if len(out) >= _PATHS]
    asked = [question for question in chain_questions(triples) if question.seeds[0] in set(rich)]
    prompts: list[TextPrompt] = []
    for question in draw.sample(asked, min(count, len(asked))):
        seeds = [question.seeds[0], *draw.sample(rich, _ENTITIES - 1)]
        draw.shuffle(seeds)
        texts = [text for entity in dict.fromkeys(seeds) for text in _paths(edges, entity, draw)]
        prompts.append(TextPrompt(tuple(texts), question.text, _PATHS_SYSTEM))
    return prompts


def _paths(edges: dict[str, list[tuple[str, str]]], entity: str, draw: random.Random) -> list[str]:
    found: list[str] = []
    for relation, middle in draw.sample(edges[entity], _PATHS):
        path = f"{entity} -> {relation} -> {middle}"
        further = [edge for edge in edges.get(middle, ()) if edge[1] not in (entity, middle)]
        if further:
            second, end = draw.choice(further)
            path += f" -> {second} -> {end}"
        found.append(path)
    return list(dict.fromkeys(found))


def _texts(prompting: Prompting, prompt: TextPrompt) -> PromptTokens:
    ids = prompt.segments(prompting).ids
    return PromptTokens(ids, ids)


def _tree(prompting: Prompting, prompt: TextPrompt) -> PromptTokens:
    whole = prompt.generation_input(1, paths_first=True)
    tree = prompting.tree(whole.messages, whole.chunk_spans)
    own = prompting.whole(prompt.messages)
    if tree is None:
        raise ConfigError(
            "no two texts of a prompt are relation paths that begin alike",
            found=prompt.question,
            valid="texts such as 'Ada -> knows -> Alan'",
        )
    return PromptTokens(own, tree.ids, tree)


_SEARCHED = "prompts of one search each"
#: By the name that the command takes. None keeps a lane when its prompt has ended: the next engine
#: in its pool needs the room.
VARIANTS: Mapping[str, Variant] = {
    variant.kind.variant: variant
    for variant in (
        Variant(
            FUSED,
            LocalOptions(
                kv_reuse="fused",
                kv_recipe="alone",  # those of this prompt would be nearly exact behind each other
                reuse_always=True,
                prefix_lanes=0,
                chunk_bytes=1 << 26,
            ),
            text_prompts,
            _texts,
            _SEARCHED,
        ),
        Variant(
            DEPENDENCY,
            LocalOptions(kv_reuse="dependency", prefix_lanes=0),
            lambda _, count: path_prompts(count),
            _tree,
        ),
        Variant(
            INT8, LocalOptions(weights="int8", prefix_lanes=0), text_prompts, _texts, _SEARCHED
        ),
    )
}
