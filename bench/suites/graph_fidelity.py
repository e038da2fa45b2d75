"""Compare answers behind trees of relation paths with those to flat text: a reader of graphs.

The reader is a Llama of 3.2M parameters (``bench.graph.reader``) that was trained here, from one
seed, to answer questions over two hops from flat causal text: a path a line. It is kept in the
user's cache; a machine that has none trains it for some ten minutes, which is not measured.
Asked are generated graphs that it has not seen, of 1, 3, 5 and 8 subgraphs. Trees have the mask of
``rag_accel.kv.dependency``, by transformers, with positions by depth (``shared``, which is what
``kv_reuse="dependency"`` computes, and ``stacked``) or in pre-order, as in the paper; in pre-order
with the reader as it is, and with one that ``rag-accel tune dependency`` has trained for 60 further
steps behind that mask, on graphs of 3 subgraphs. ``accelerated`` is the engine itself, on the
smallest graphs. DepCache as printed (``bench.baselines.depcache``) answers by the tuned reader, of
whose trees nothing is kept, or every second path, which stood elsewhere among fewer siblings in a
prompt before: with its keys rotated to their new places, and not. Figures are shares of answers
that are right in each token.

Beside that, SmolLM2 135M Instruct, where its package is installed, reads paths of the standard
library: how far its answers behind a tree are from those to the same prompt as flat text, whose
tokens are forced. That is Kullback-Leibler divergence in nats of the first token and of all, and
how often the most probable token is the same. It was not made for trees and is not tuned. Nothing
is timed.

Ratios:
    untuned_em: against flat text: exact match of an untuned reader behind trees with ``shared``
        positions / its exact match of flat text; each the mean over sizes of graphs.
    stacked_em: against flat text: the same with ``stacked`` positions.
    preorder_em: against flat text: the same in pre-order.
    tuned_em: against flat text: the same in pre-order, of the tuned reader / the untuned one's of
        flat text.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.arms import thread_candidates
from bench.graph.reader import RECIPE, graph_names, reader_folder, tuned_folder
from bench.graph.reading import (
    FLAT,
    PREORDER,
    SHARED,
    STACKED,
    TUNED,
    divergence_rows,
    divergences,
    engine_row,
    library_prompts,
    match_rows,
)
from bench.graph.reused_nodes import depcache_rows
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning import GraphNames, GraphShape, generate_questions
from rag_accel.sample import read_library_graph, smollm2_folder
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

_CHAT = "SmolLM2, the standard library"
_RATIOS = {"untuned_em": SHARED, "stacked_em": STACKED, "preorder_em": PREORDER, "tuned_em": TUNED}
_EVALUATED = 777  # another seed than those of training

_logger = logging.getLogger("bench.graph_fidelity")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        subgraphs: of the graphs of each workload.
        hops: edges of an entity, and of each that it leads to.
        graphs: of a workload.
        questions: most about a graph.
        engine_graphs: of the first workload that the engine is asked about, too, and of every one
            that DepCache is.
        prompts: of the chat model.
        heads: entities of such a prompt.
        paths: most from each.
        answer: most tokens of its answer.
    """

    subgraphs: tuple[int, ...] = (1, 3, 5, 8)
    hops: tuple[int, int] = (3, 2)
    graphs: int = 96
    questions: int = 12
    engine_graphs: int = 16
    prompts: int = 60
    heads: int = 2
    paths: int = 6
    answer: int = 10


QUICK = Sizes(graphs=24, engine_graphs=4, prompts=12)
FULL_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """Models and what they are asked about; tests give small ones.

    Args:
        model: the reader.
        tuned: the reader, tuned in pre-order.
        tokenizer: of both.
        names: of its graphs.
        chat: a chat model and its tokenizer; None leaves it out.
    """

    model: Any
    tuned: Any
    tokenizer: Any
    names: GraphNames
    chat: tuple[Any, Any] | None


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL_SIZES)
    given = material or _real_material()
    threads = max(thread_candidates(usable_cores()))
    rows: list[Row] = []
    with torch_threads(threads):
        for count in chosen.subgraphs:
            rows += _reader_rows(given, chosen, count, threads)
        if given.chat is not None:
            triples = read_library_graph().triples
            asked = library_prompts(triples, chosen.prompts, chosen.heads, chosen.paths, seed=0)
            found = divergences(*given.chat, asked, chosen.answer, threads)
            rows += divergence_rows(found, _CHAT)
    return SuiteResult("graph_fidelity", tuple(rows), _ratios(rows), sizes=sizes_of(chosen))


def _reader_rows(given: Material, sizes: Sizes, count: int, threads: int) -> list[Row]:
    shape = GraphShape(count, *sizes.hops, sizes.questions)
    rng = np.random.default_rng((_EVALUATED, count))
    prompts = [generate_questions(given.names, shape, rng) for _ in range(sizes.graphs)]
    workload = f"{count} subgraphs" if count > 1 else "1 subgraph"
    rows = match_rows(given.model, given.tuned, given.tokenizer, prompts, workload)
    some = prompts[: sizes.engine_graphs]
    rows += depcache_rows(given.tuned, given.tokenizer, some, threads, workload)
    if count == sizes.subgraphs[0]:
        rows.append(engine_row(given.model, given.tokenizer, some, threads, workload))
    return rows


def _ratios(rows: list[Row]) -> dict[str, float]:
    flat = _mean(rows, FLAT)
    return {name: _mean(rows, system) / flat for name, system in _RATIOS.items()} if flat else {}


def _mean(rows: list[Row], system: str) -> float:
    return fmean(row.median for row in rows if row.system == system)


def _real_material() -> Material:
    folder = reader_folder()
    model, tokenizer = load_source(folder)
    tuned, _ = load_source(tuned_folder(folder))
    return Material(model, tuned, tokenizer, graph_names(RECIPE), _chat_model())


def _chat_model() -> tuple[Any, Any] | None:
    try:
        folder: Path = smollm2_folder()
    except ConfigError as error:
        _logger.info("no chat model is measured: %s", error)
        return None
    return load_source(folder, "float32")
