"""Answers behind trees of relation paths, and those to flat text: of a reader, of a chat model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.results import Row
from rag_accel.engine_api import ChunkSpan, GenerationInput, Message
from rag_accel.engines.llm.local.model.loading import LoadedModel, load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.errors import EngineError
from rag_accel.fidelity.divergence import Divergence, divergence, mean_and_error
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.tuning.packing import PromptPacker
from rag_accel.fidelity.tuning.questions import GraphQuestions
from rag_accel.fidelity.tuning.training import exact_match
from rag_accel.kv.dependency.layouts import Layout
from rag_accel.kv.dependency.positions import PositionScheme

FLAT, PREORDER, TUNED = "flat text", "preorder, untuned", "preorder, tuned"
SHARED, STACKED, ENGINE = "shared, untuned", "stacked, untuned", "accelerated"

_HEAD = "Facts:\n"
_POOL_BYTES, _CONTEXT = 1 << 28, 2048

#: Of each way, whose weights are read with, how paths stand, and their positions.
_WAYS: Mapping[str, tuple[bool, Layout, PositionScheme]] = {
    FLAT: (False, "flat", "shared"),
    PREORDER: (False, "tree", "preorder"),
    TUNED: (True, "tree", "preorder"),
    SHARED: (False, "tree", "shared"),
    STACKED: (False, "tree", "stacked"),
}


@dataclass(frozen=True, slots=True)
class GraphPrompt:
    """A prompt of a user: relation paths as retrieved texts, a line each, and a question."""

    lines: tuple[str, ...]
    question: str

    def payload(self, most: int) -> GenerationInput:
        """Return the prompt as an engine is given it, for an answer of at most so many tokens."""
        spans: list[ChunkSpan] = []
        at = len(_HEAD)
        for line in self.lines:
            spans.append(ChunkSpan(0, at, at + len(line), line))
            at += len(line) + 1
        content = "\n".join(
            [f"{_HEAD}{self.lines[0]}", *self.lines[1:], f"Question: {self.question}"]
        )
        turn = Message("user", content)
        return GenerationInput((turn,), max_tokens=most, chunk_spans=tuple(spans))


def match_rows(
    model: Any, tuned: Any, tokenizer: Any, prompts: Sequence[GraphQuestions], workload: str
) -> list[Row]:
    """Return the share of answers that are right, of each way to compute the prompts."""
    rows: list[Row] = []
    for name, (is_tuned, layout, scheme) in _WAYS.items():
        packer = PromptPacker(tokenizer, layout=layout, scheme=scheme)
        packed = (packer.pack(prompt) for prompt in prompts)
        right, total = exact_match(tuned if is_tuned else model, packed)
        rows.append(Row(name, workload, "exact_match", right / total, None, total))
    return rows


def engine_row(
    model: Any, tokenizer: Any, prompts: Iterable[GraphQuestions], threads: int, workload: str
) -> Row:
    """Return the share of answers that are right of the engine itself, a question a request."""
    engine = _tree_engine(model, tokenizer, threads)
    prompting = Prompting(tokenizer)
    right = total = 0
    try:
        for prompt in prompts:
            lines = tuple("".join(path) for path in prompt.paths)
            for question, answer in prompt.questions:
                asked = GraphPrompt(lines, question).payload(1)
                _, logits = engine.answer(asked, _tree_size(prompting, asked))
                right += int(logits[0].argmax()) == prompting.alone(answer)[0]
                total += 1
    finally:
        engine.close()
    return Row(ENGINE, workload, "exact_match", right / total, None, total)


def divergences(
    model: Any, tokenizer: Any, prompts: Iterable[GraphPrompt], most: int, threads: int
) -> list[Divergence]:
    """Return how far answers behind trees are from those to the same prompts as flat text.

    Flat text is answered greedily, in at most so many tokens; behind the tree these are forced.
    """
    loaded = _loaded(model, tokenizer, LocalOptions())
    exact = ForcedEngine(loaded, LocalOptions(), threads)
    trees = _tree_engine(model, tokenizer, threads)
    prompting = Prompting(tokenizer)
    found: list[Divergence] = []
    try:
        for prompt in prompts:
            ids = prompting.whole(prompt.payload(most).messages)
            flat = TokenInput(ids=ids, ends=loaded.ends, most=most)
            output, logits = exact.answer(flat, len(ids))
            asked = prompt.payload(len(output.tokens))
            _, behind = trees.answer(asked, _tree_size(prompting, asked), output.tokens)
            found.append(divergence(logits[: len(behind)], behind))
    finally:
        exact.close()
        trees.close()
    return found


def divergence_rows(found: Sequence[Divergence], workload: str) -> list[Row]:
    """Return the means over prompts, with their standard errors."""
    rows: list[Row] = []
    for metric, values in {
        "kl_first_nats": [apart.kl_first for apart in found],
        "kl_nats": [apart.kl_mean for apart in found],
        "top1": [apart.top1 for apart in found],
    }.items():
        mean, error = mean_and_error(values)
        rows.append(Row(ENGINE, workload, metric, mean, None, len(found)))
        rows.append(Row(ENGINE, workload, f"{metric}_error", error, None, len(found)))
    return rows


def library_prompts(
    triples: Iterable[tuple[str, str, str]], count: int, heads: int, paths: int, seed: int
) -> list[GraphPrompt]:
    """Return prompts with paths of two hops of a graph, and a question about one of them.

    Args:
        triples: of the graph.
        count: how many prompts.
        heads: entities of a prompt.
        paths: most of an entity; at least two.
        seed: of what is drawn.
    """
    edges: dict[str, list[tuple[str, str]]] = {}
    for head, relation, tail in triples:
        edges.setdefault(head, []).append((relation, tail))
    walks: dict[str, list[tuple[str, str, str, str, str]]] = {}
    for head, firsts in edges.items():
        found = [
            (head, first, middle, second, tail)
            for first, middle in firsts
            for second, tail in edges.get(middle, ())
            if tail != head
        ]
        if len(found) > 1:
            walks[head] = found
    rng, names = np.random.default_rng(seed), list(walks)
    prompts: list[GraphPrompt] = []
    for _ in range(count):
        lines: list[str] = []
        asked: list[tuple[str, str, str, str, str]] = []
        for at in rng.choice(len(names), heads, replace=False).tolist():
            found = walks[names[at]]
            drawn = rng.choice(len(found), min(paths, len(found)), replace=False)
            chosen = [found[place] for place in sorted(drawn.tolist())]
            lines += (f"{a} -> {r} -> {b} -> {s} -> {c}" for a, r, b, s, c in chosen)
            asked.append(chosen[0])
        head, first, _, second, _ = asked[int(rng.integers(len(asked)))]
        question = f"Where does {head} lead to by '{first}' and then '{second}'?"
        prompts.append(GraphPrompt(tuple(lines), question))
    return prompts


def _loaded(model: Any, tokenizer: Any, options: LocalOptions) -> LoadedModel:
    return load(model, tokenizer, context=_CONTEXT, pool_bytes=_POOL_BYTES, options=options)


def _tree_engine(model: Any, tokenizer: Any, threads: int) -> ForcedEngine:
    options = LocalOptions(kv_reuse="dependency")
    return ForcedEngine(_loaded(model, tokenizer, options), options, threads)


def _tree_size(prompting: Prompting, asked: GenerationInput) -> int:
    tree = prompting.tree(asked.messages, asked.chunk_spans)
    if tree is None:
        raise EngineError("a prompt has no tree", where="graph_fidelity", valid="paths that share")
    return len(tree.ids)
