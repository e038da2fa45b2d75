"""A real engine keeps and evicts nodes of trees as the replay of ``graph_cache`` does."""

from __future__ import annotations

from statistics import fmean

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from bench.graph.cache import distinct_tokens, replay
from bench.graph.live import live_shares
from bench.graph.trees import PathGraph, letter_pieces, tree_stream
from rag_accel.engines.llm.local.model.runner import packed_runner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy
from rag_accel.kv.eviction import eviction_policy

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
