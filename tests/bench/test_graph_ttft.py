"""The suite on first tokens over paths of a graph runs all arms and refuses wrong answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import numpy as np
from fake_runner import tokenizer

from bench.arms import bench_accelerator
from bench.graph.first_token import (
    Chats,
    Retrieved,
    token_bytes,
)
from bench.graph.opponents import (
    chunks_arm,
    kept_lines,
    radix_arm,
)
from bench.graph.trees import PathGraph, letter_pieces
from bench.kv.first_token import Shape
from bench.suites import graph_ttft
from rag_accel.engines.llm.local.reuse.spans import SpanReuse
from rag_accel.sample import read_library_graph

#: Weights are random: no check of answers over trees could pass.
pytestmark = pytest.mark.filterwarnings('ignore:.*kv_reuse="dependency" was not:UserWarning')

TINY = graph_ttft.Sizes(
    shape=Shape(hidden=64, layers=2, heads=4, kv_heads=2, mlp=128, context=4096),
    triples=3000,
    entities=30,
    seeds=2,
    paths=4,
    turns=1,
    runners=("torch",),
    runner_turns=1,
    queries=6,
    stream_entities=5,
    counted=2,
    opponents_counted=2,
    share=0.5,
    short_turns=2,
    paths_first=3,
    answers=1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tiny-tokenizer")
    tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def graph() -> PathGraph:
    return PathGraph(read_library_graph(3000).triples, 30, letter_pieces, seed=0)


def test_arms_begin_with_what_they_keep_of_a_stream(graph: PathGraph) -> None:
    names = graph.entities
    question = graph.question(np.random.default_rng(0))
    first, second = (
        Retrieved(graph.retrieved_paths(names[at : at + 1], question, 4)) for at in range(2)
    )
    model = TINY.shape.model(len(tokenizer()))
    with bench_accelerator(threads=1) as accelerator:
        chats = Chats(model, tokenizer(), accelerator)
        room = 4096 * token_bytes(model.config)
        known = _sizes(second)
        radix = radix_arm(chats, [first, second], [second], room)
        assert radix(second).cached_tokens >= known
        other = radix_arm(chats, [first, second], [Retrieved(first.paths[:2])], room)
        assert other(second).cached_tokens < known  # it was computed as far as it was needed
        chunks = chunks_arm(chats, [first, second], room)
        moved = chunks(Retrieved((*second.paths[::-1], *first.paths)))
        assert moved.cached_tokens >= known + _sizes(first)
        few = radix_arm(chats, [first, second], [first, second], 1)
        assert few(second).cached_tokens >= known > few(first).cached_tokens


def _sizes(found: Retrieved) -> int:
    return sum(
        len(tokenizer()(line, add_special_tokens=False)["input_ids"]) for line in found.lines
    )


def test_kept_paths_are_the_latest_that_have_room(graph: PathGraph) -> None:
    lines = [("Fuji is high", " above", " the sea"), ("Ada wrote", " down", " notes on engines")]
    tokens = [len(tokenizer()("".join(line))["input_ids"]) for line in lines]
    stream = [Retrieved((line,)) for line in (*lines, lines[0])]
    texts = ["".join(line) for line in lines]
    assert kept_lines(tokenizer(), stream, sum(tokens), 1) == [texts[1], texts[0]]
    assert kept_lines(tokenizer(), stream, tokens[0], 1) == [texts[0]]
    assert kept_lines(tokenizer(), stream, 1, 1) == []


def test_states_in_wrong_places_fail_the_suite(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SpanReuse._place_nodes

    def shifted(self: SpanReuse, *arguments: Any, **options: Any) -> None:
        place = self._pool.place
        with monkeypatch.context() as patch:
            patch.setattr(
                self._pool,
                "place",
                lambda lane, slot, states, positions: place(
                    lane, slot, states, [at + 40 for at in positions]
                ),
            )
            real(self, *arguments, **options)

    monkeypatch.setattr(SpanReuse, "_place_nodes", shifted)
    wrong = graph_ttft.run(True, TINY, folder).wrong
    assert any("different_answers" in line or "logprob_difference" in line for line in wrong)


def test_grouped_text_has_each_entity_once() -> None:
    paths = (("a", " -> r ->", " b", " -> s ->", " c"), ("a", " -> r ->", " b", " -> s ->", " d"))
    asked = Retrieved(paths)
    assert asked.flat == "a -> r -> b -> s -> c\na -> r -> b -> s -> d"
    assert asked.grouped == "a -> r -> b\nb -> s -> c\n -> s -> d"
