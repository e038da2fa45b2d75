"""A real engine keeps and evicts nodes of trees as the replay of ``graph_cache`` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from bench.graph.cache import distinct_tokens, replay
from bench.graph.trees import Node, PathGraph, TreeRequest, letter_pieces, tree_stream
from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.runner import packed_runner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.kv.dependency.positions import tree_positions
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree
from rag_accel.kv.eviction import eviction_policy
from rag_accel.kv.segments import prompt_around

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 200,
    "max_position_embeddings": 2048,
}
TRIPLES = [
    (f"entity {head}", relation, f"entity {(head * step + 7) % 97}")
    for head in range(97)
    for step, relation in enumerate(("knows", "holds", "calls", "of", "in", "near"), 2)
]
WINDOW, REQUESTS = 6, 40
HEAD, TASK = (3, 4), (5,)


def live_shares(
    requests: Sequence[TreeRequest], runner: Any, eviction: str, limit_tokens: int, window: int
) -> list[float]:
    """Return of each request the tokens whose state was kept / all of its tokens.

    ``window`` requests wait behind the one that runs, as in ``replay``.
    """
    state = token_bytes(runner)
    options = LocalOptions(
        kv_reuse="dependency",
        eviction=eviction,
        chunk_bytes=limit_tokens * state,
        max_tree_prompts=1,
        max_requests=window + 1,
    )
    engine = LocalLLMEngine(runner, None, eos=(), options=options)
    works = [work_of(number, request, runner.vocabulary) for number, request in enumerate(requests)]
    shares = [0.0] * len(works)
    waiting, ended = 0, 0
    try:
        while ended < len(works):
            while waiting < min(len(works), ended + window + 1):
                engine.submit([works[waiting]])
                waiting += 1
            for output in engine.step(StepBudget(threads=1)):
                if output.error is not None:
                    raise output.error
                if output.kind == "final":
                    done: Any = output.value
                    shares[int(output.id)] = done.use.from_chunks / done.use.approximate
                    ended += 1
    finally:
        engine.close()
    return shares


def token_bytes(runner: Any) -> int:
    lane = runner.pool.take(1)
    runner.pool.mark(lane, 1, is_moved=False)
    state = runner.pool.read(lane, range(1))
    runner.pool.free(lane)
    return state.nbytes


def work_of(number: int, request: TreeRequest, vocabulary: int) -> EngineRequest:
    tree = tree_of(request, vocabulary)
    prompt = prompt_around(HEAD, tree, TASK, tree_positions(tree, begin=len(HEAD)))
    payload = TokenInput(ids=prompt.ids, ends=frozenset(), most=1, segments=prompt)
    id = WorkId(str(number))
    return EngineRequest(id, str(id), PrimitiveKind.DECODING, payload, arrived_at=float(number))


def tree_of(request: TreeRequest, vocabulary: int) -> DependencyTree:
    """Return the nodes of a request in pre-order, with tokens drawn by their keys."""
    below: dict[bytes | None, list[Node]] = defaultdict(list)
    for node in request:
        below[node.parent].append(node)
    ordered: list[Node] = []
    waiting = below[None][::-1]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting += below[node.key][::-1]
    place = {node.key: at for at, node in enumerate(ordered)}
    ids = [
        np.random.default_rng(int.from_bytes(node.key, "big")).integers(6, vocabulary, node.tokens)
        for node in ordered
    ]
    return DependencyTree(
        texts=tuple(node.key.hex() for node in ordered),
        parents=np.array(
            [NO_NODE if node.parent is None else place[node.parent] for node in ordered], np.int32
        ),
        starts=np.cumsum([0, *(node.tokens for node in ordered)], dtype=np.int32),
        ids=np.concatenate(ids).astype(np.int32),
    )


@pytest.mark.parametrize("policy", ["lookahead", "lru"])
def test_a_live_run_hits_as_the_replay_does(policy: str) -> None:
    graph = PathGraph(TRIPLES, 60, letter_pieces, seed=0)
    requests = tree_stream(graph, "zipf", REQUESTS, seeds=3, paths=8, seed=0)
    limit = int(0.15 * distinct_tokens(requests))
    source = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    runner = packed_runner(packed_copy(source), 2048, 1 << 26)
    live = live_shares(requests, runner, policy, limit, WINDOW)
    replayed = replay(requests, eviction_policy(policy), limit, WINDOW)
    assert 5 < replayed.percent(0) < 95
    assert abs(100 * fmean(live) - replayed.percent(0)) <= 1.0
