"""Requests for trees on a real engine, whose hits are compared with those of a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.graph.trees import Node, TreeRequest
from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, WorkId
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.kv.dependency.positions import tree_positions
from rag_accel.kv.dependency.tokens import TreePrompt
from rag_accel.kv.dependency.tree import NO_NODE, DependencyTree

_HEAD, _TASK = (3, 4), (5,)


def live_shares(
    requests: Sequence[TreeRequest], runner: Any, eviction: str, limit_tokens: int, window: int
) -> list[float]:
    """Return of each request the tokens whose state was kept / all of its tokens.

    So many requests wait behind the one that runs, as in ``replay``.

    Args:
        requests: the stream.
        runner: of a model; what it computes does not matter.
        eviction: the name of the policy.
        limit_tokens: how many tokens have room in the store.
        window: how many wait.
    """
    state = _token_bytes(runner)
    options = LocalOptions(
        kv_reuse="dependency",
        eviction=eviction,
        chunk_bytes=limit_tokens * state,
        max_tree_prompts=1,
        max_requests=window + 1,
    )
    engine = LocalLLMEngine(runner, None, eos=(), options=options)
    works = [_work(number, request, runner.vocabulary) for number, request in enumerate(requests)]
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


def _token_bytes(runner: Any) -> int:
    lane = runner.pool.take(1)
    runner.pool.mark(lane, 1, is_moved=False)
    state = runner.pool.read(lane, range(1))
    runner.pool.free(lane)
    return state.nbytes


def _work(number: int, request: TreeRequest, vocabulary: int) -> EngineRequest:
    tree = _tree(request, vocabulary)
    prompt = TreePrompt(_HEAD, tree, _TASK, tree_positions(tree, begin=len(_HEAD)))
    payload = TokenInput(ids=prompt.ids, ends=frozenset(), most=1, segments=prompt)
    id = WorkId(str(number))
    return EngineRequest(id, str(id), PrimitiveKind.DECODING, payload, arrived_at=float(number))


def _tree(request: TreeRequest, vocabulary: int) -> DependencyTree:
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
