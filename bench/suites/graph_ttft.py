"""Measure the time to the first token of prompts with many paths out of a knowledge graph.

The model is a Llama of random weights in bfloat16 (hidden size 768, 10 layers, 12 heads of 64 and 4
of keys and values, SwiGLU of 2048) with the tokenizer of SmolLM2, on one torch thread. The graph is
the standard library of the running Python. A question is about 10 entities; from each of them up
to 30 paths of two hops nearest to the question are retrieved (``graph_cache``). An arm is a call of
``ChatRagAccel``, from the call through driver and engine to the end of an answer of one token, on
the runner that is chosen for the model. Arms take turns over the same paths.

Causal arms compute every token of the prompt: of flat text, one path below the other, which is what
the paper compares with, or of grouped text, each entity once and its edges behind it, which is what
a careful user writes. Ours is given flat text and the paths as documents, with
``kv_reuse="dependency"``: paths that begin alike are computed as a tree, whose nodes are kept. Of a
tree nothing is kept (the entities are in no prompt before), or all (it is asked for once more), or
what is kept along a stream of questions whose entities are drawn by Zipf's law, where there is room
for 15 % of the distinct tokens of the stream, empty at first, by the policy ``lookahead``; nothing
waits behind a question. Its last questions count. How many of a tree's tokens were kept is a row.
The runners by name, where both are there, are rows without a ratio.

Beside the stream stand, in rows without a ratio, other ways to keep it, each in the same bytes
and after the same questions, of which the last few count (``bench.graph.opponents``): the prefix
cache of our exact mode over flat text, as servers share the beginnings of prompts; our
``kv_reuse="full"``, each path a text; and DepCache as its paper prints it, trees with positions in
pre-order, the keys of kept nodes rotated to their new places or, another row, left as they are, by
the policy LACR. It has no queue to look into, and is timed without an engine. How much of a whole
prompt each way took over is a row, and whether its answers are those of the same prompt, flat or
in pre-order, of which nothing was kept.

The short prompts have three paths of one entity that was never asked for.

Attention over a tree is approximate against flat text: other answers are expected. Over a tree of
which some or all is kept they must be those over one of which nothing is: eight tokens and their
probabilities are compared, of the same shape in float32 with larger weights, in which wrong states
show.

Ratios:
    zipf_vs_grouped: against grouped text in our exact mode: its time to the first token / that of
        the tree at the end of a Zipf stream; median over questions.
    cold_vs_grouped: against grouped text in our exact mode: its time to the first token / that of
        the tree, nothing of it kept; median over turns.
    warm_vs_grouped: against grouped text in our exact mode: its time to the first token / that of
        the tree, all of it kept; median over turns.
    cold_vs_flat: against flat text in our exact mode: its time to the first token / that of the
        tree, nothing of it kept; median over turns.
    short_prompt: against flat text in our exact mode: our time to the first token of three paths
        that were never seen, as a tree / its (lower is better); median over pairs.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.answers import too_many
from bench.garbage import little_garbage
from bench.graph import opponent_answers, tree_answers
from bench.graph.first_token import (
    COLD,
    FLAT,
    GROUPED,
    STREAM,
    WARM,
    FirstTokens,
    Retrieved,
    measure,
    measure_short,
    measure_stream,
)
from bench.graph.opponents import measure_opponents
from bench.graph.trees import PathGraph, letter_pieces, minilm_pieces, path_stream
from bench.kv.first_token import Shape
from bench.measure import median
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.engines.llm.local.options import RunnerName
from rag_accel.sample import read_library_graph, smollm2_folder

_LONG = 1 << 14  # positions: flat text of 300 paths has some 8,000 tokens

#: From each entity, where other ways' answers are compared: that is flat text in float32.
_ANSWERED_PATHS = 10

_logger = logging.getLogger("bench.graph_ttft")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        shape: of the model of random weights.
        triples: most of the graph; None: all.
        entities: that questions are about.
        seeds: entities of a question.
        paths: most from each entity.
        turns: of causal text and trees.
        runners: that are measured besides the chosen one, as far as they are there.
        runner_turns: of each of them.
        queries: of the stream.
        stream_entities: that its questions are about.
        counted: of its questions, the last ones.
        opponents_counted: of them, the last ones, which other ways to keep a stream are asked.
        share: of the stream's distinct tokens that have room.
        short_turns: of the short prompts.
        paths_first: of a short prompt.
        answers: prompts whose answers are compared.
    """

    shape: Shape = field(default_factory=lambda: Shape(context=_LONG))
    triples: int | None = None
    entities: int = 1000
    seeds: int = 10
    paths: int = 30
    turns: int = 9
    runners: tuple[RunnerName, ...] = ("torch", "paged")
    runner_turns: int = 5
    queries: int = 300
    stream_entities: int = 1000
    counted: int = 60
    opponents_counted: int = 10
    share: float = 0.15
    short_turns: int = 60
    paths_first: int = 3
    answers: int = 6


QUICK = Sizes(
    entities=200,
    turns=2,
    runner_turns=1,
    queries=60,
    stream_entities=200,
    counted=6,
    opponents_counted=2,
    short_turns=20,
    answers=2,
)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None, folder: str | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for.

    Args:
        quick: whether to measure little.
        sizes: how much, else.
        folder: of the tokenizer; by default SmolLM2's.
    """
    chosen = sizes or (QUICK if quick else FULL)
    tokenizer = _tokenizer(folder or str(smollm2_folder()))
    model = chosen.shape.model(len(tokenizer))
    triples = read_library_graph(chosen.triples).triples
    pieces = minilm_pieces() or letter_pieces
    graph = PathGraph(triples, chosen.entities, pieces, seed=0)
    source = _Questions(graph, chosen)
    with little_garbage():
        found = _by_runner(chosen, source, model, tokenizer)
    with little_garbage():
        stream = _stream(chosen, source, model, tokenizer)
    with little_garbage():
        opponents = _opponents(chosen, source, model, tokenizer)
    with little_garbage():
        asked = source.apart(chosen.short_turns + 1, 1, chosen.paths_first)
        short = measure_short(model, tokenizer, asked)
    _logger.info("short prompts: %.3f", short.ratio)
    rows: list[Row] = [row for one in (*found, stream, opponents) for row in one.rows()]
    rows += short.rows()
    rows += _answers(chosen, source, model, tokenizer)
    ratios = {
        "zipf_vs_grouped": stream.gain(GROUPED, STREAM),
        "cold_vs_grouped": found[0].gain(GROUPED, COLD),
        "warm_vs_grouped": found[0].gain(GROUPED, WARM),
        "cold_vs_flat": found[0].gain(FLAT, COLD),
        "short_prompt": short.ratio,
    }
    wrong = (
        *too_many(rows, "different_answers"),
        *too_many(rows, "max_logprob_difference", tree_answers.MOST_DIFFERENCE),
        *too_many(rows, "not_as_asked"),
    )
    return SuiteResult("graph_ttft", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


class _Questions:
    """Questions about entities of a graph."""

    def __init__(self, graph: PathGraph, sizes: Sizes) -> None:
        self._graph = graph
        self._sizes = sizes

    def apart(self, count: int, seeds: int, paths: int) -> list[Retrieved]:
        """Return the paths of questions, no entity in two of them."""
        draw = np.random.default_rng(count)
        names = self._graph.entities
        return [
            Retrieved(
                self._graph.retrieved_paths(
                    names[at * seeds : (at + 1) * seeds], self._graph.question(draw), paths
                )
            )
            for at in range(count)
        ]

    def stream(self) -> list[Retrieved]:
        """Return the paths of a Zipf stream."""
        sizes = self._sizes
        found = path_stream(
            *(self._graph, "zipf", sizes.queries, sizes.seeds, sizes.paths),
            seed=0,
            entities=sizes.stream_entities,
        )
        return [Retrieved(paths) for paths in found]


def _by_runner(sizes: Sizes, source: _Questions, model: Any, tokenizer: Any) -> list[FirstTokens]:
    """Return what was found on the chosen runner, and then on others by name."""
    runners: list[tuple[RunnerName, int]] = [("auto", sizes.turns)]
    for name in sizes.runners:
        if name != "paged" or importlib.util.find_spec("openvino") is not None:
            runners.append((name, sizes.runner_turns))
    found: list[FirstTokens] = []
    for name, turns in runners:
        asked = source.apart(turns + 1, sizes.seeds, sizes.paths)
        is_first = not found
        found.append(measure(model, tokenizer, asked, name, with_flat=is_first))
        gains = {arm: round(found[-1].gain(GROUPED, arm), 2) for arm in found[-1].found}
        _logger.info("%s: against grouped text %s", name, gains)
    return found


def _stream(sizes: Sizes, source: _Questions, model: Any, tokenizer: Any) -> FirstTokens:
    found = measure_stream(model, tokenizer, source.stream(), sizes.share, sizes.counted)
    _logger.info("stream: %.2f, %s", found.gain(GROUPED, STREAM), found.hit_percent)
    return found


def _opponents(sizes: Sizes, source: _Questions, model: Any, tokenizer: Any) -> FirstTokens:
    found = measure_opponents(
        *(model, tokenizer, source.stream(), sizes.share, sizes.opponents_counted)
    )
    for name, each in found.found.items():
        seconds = round(median([one.seconds for one in each]), 3)
        _logger.info("%s: %s s to the first token", name, seconds)
    return found


def _answers(sizes: Sizes, source: _Questions, model: Any, tokenizer: Any) -> list[Row]:
    """Return the rows on answers; the model is changed."""
    sharp = tree_answers.sharpened(model)
    asked = source.apart(sizes.answers, 2, sizes.paths)
    workload = f"{sizes.answers} prompts in float32"
    rows = tree_answers.compare(sharp, tokenizer, asked).rows(workload)
    asked = source.apart(sizes.answers, 2, min(sizes.paths, _ANSWERED_PATHS))
    equal = opponent_answers.equal_answers(sharp, tokenizer, asked)
    _logger.info("answers equal to those computed anew, of %d: %s", len(asked), equal)
    metric = "answers_equal_to_recomputed"
    return rows + [Row(name, workload, metric, n, None, len(asked)) for name, n in equal.items()]


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
