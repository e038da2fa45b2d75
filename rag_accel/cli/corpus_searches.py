"""``rag-accel corpus``: how much the searches of a saved index have in common (HedraRAG 4.3)."""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.cli.corpus import read_questions
from rag_accel.cli.fill import load_embedder
from rag_accel.engines.retrieval import DocumentIndex, IndexHeader, load_index, read_header
from rag_accel.engines.retrieval.index.list_files import give_back_pages, mapped_range
from rag_accel.engines.retrieval.vectors.checks import checked_vectors
from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY
from rag_accel.engines.retrieval.vectors.inverted_list import num_bytes
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.read_order import MOST_LABELS, Order, follow_searches
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.tiered import TieredVectors
from rag_accel.errors import ConfigError

ORDERS: tuple[Order, ...] = ("centroid", "mixed")
HOTTEST = 0.2
#: of all vectors, those that have room in a faster memory
HOT_SHARES = (0.1, 0.33)
_MOST_RESULTS = 1_000
#: searches before those that are measured: clusters are exchanged four times
WARM_UP = 4 * EXCHANGED_EVERY
_MOST_SEARCHES = 1_000


def add_corpus_command(commands: Any) -> None:
    corpus = commands.add_parser(
        "corpus", help="show how much searches of a saved index have in common"
    )
    corpus.add_argument("index", metavar="INDEX", type=Path, help="a saved index with clusters")
    valid = 'a line of JSON each: {"question": text} or {"vector": [...]}'
    corpus.add_argument("questions", metavar="FILE", type=Path, help=valid)
    corpus.add_argument("--k", metavar="N", type=int, default=5, help="results of a question; 5")
    corpus.add_argument("--embedder", metavar="MODEL", help="makes the vectors of texts")
    corpus.add_argument(
        "--measure",
        action="store_true",
        help="also time searches in memory and from a copy of the file with hot clusters",
    )
    corpus.set_defaults(run=_corpus)


def _corpus(arguments: argparse.Namespace) -> int:
    path, k = arguments.index.expanduser(), arguments.k
    if not 1 <= k <= _MOST_RESULTS:
        raise _error("option out of range", "--k", k, f"from 1 to {_MOST_RESULTS}")
    try:
        header = read_header(path)
    except OSError as error:
        raise _error("no index can be read", path, error, "a file of save_index") from error
    size = f"{header.count:,} documents in {header.num_clusters:,} clusters"
    if not header.num_clusters or not header.count:
        raise _error("an index without clusters", path, size, "kind ivf, train_size documents")
    queries = _queries(arguments.questions, header, arguments.embedder)
    index = load_index(path)
    with index.reading():
        vectors = index.view().vectors
        assert isinstance(vectors, IvfVectors), "the footer counts clusters"
        searched = f"{vectors.num_visited(False, None):,} read by a search"
        print(f"{size}, {searched}; {len(queries):,} questions for {k}")
        for name, share in measure_corpus(vectors, queries, k).items():
            print(f"{share:7.1%} {name}")
    if arguments.measure:
        for name, rate in measure_tiers(path, queries, k, HOT_SHARES):
            print(f"{rate:7.0f} searches/s {name}")
    return 0


def measure_corpus(index: IvfVectors, queries: Vectors, k: int) -> dict[str, float]:
    """Compare each search for ``queries: [n, dim]``, two or more, with the one before it.

    Return shares by name: of results as in HedraRAG's Figures 7 and 9a, of the vectors that a
    search reads until it has found all results, of all vectors read as in Figure 8, and of those
    that a memory of some size would hold (section 4.4).
    """
    searches = follow_searches(index, queries[:-1], queries[1:], k)
    are_in = [
        (
            np.isin(search.labels, search.last.labels),
            np.isin(search.clusters, search.last.clusters),
            np.isin(search.clusters, search.last.searched),
        )
        for search in searches
    ]
    names = (
        f"of results are among the {MOST_LABELS} nearest of the question before",
        "of results are in the clusters of these",
        "of results are in the clusters that its search read",
    )
    parts = zip(*are_in, strict=True)
    found = {
        name: float(np.concatenate(part).mean()) for name, part in zip(names, parts, strict=True)
    }
    for order in ORDERS:
        shares = [search.share_until_final(order, index.metric) for search in searches]
        name = f"of its vectors a search reads until results are final, {order} order"
        found[f"{name}, median"] = float(np.median(shares))
        found[f"{name}, p90"] = float(np.percentile(shares, 90))
    read = [search.last.searched for search in searches] + [searches[-1].scan.clusters]
    times = np.bincount(np.concatenate(read), minlength=index.num_clusters)
    sizes = index.cluster_sizes()
    read_vectors = times * sizes
    total = max(1, read_vectors.sum())
    hottest = np.sort(read_vectors)[::-1][: math.ceil(HOTTEST * len(sizes))].sum() / total
    found[f"of vectors read are in the most read {HOTTEST:.0%} of the clusters"] = float(hottest)
    hot_first = np.argsort(-times, kind="stable")
    for share in HOT_SHARES:
        fit = hot_first[np.cumsum(sizes[hot_first]) <= share * sizes.sum()]
        name = f"of vectors read are hot where hot_bytes is {share:.0%} of the clusters' bytes"
        found[name] = float(read_vectors[fit].sum() / total)
    return found


def measure_tiers(
    path: Path, queries: Vectors, k: int, shares: tuple[float, ...]
) -> Iterator[tuple[str, float]]:
    """Yield ways to hold an index, and the searches per second, one at a time, of each.

    A copy of the file is made in its folder and removed again. Its pages are given back to the
    system before each search, as if there were no memory for any.

    Args:
        path: of the index.
        queries: ``[n, dim]``; asked in turn, some hundreds of times.
        k: documents that each asks for.
        shares: of the bytes of all clusters, what hot ones may take.

    Raises:
        ConfigError: the folder takes no copy, or the system gives no pages back.
    """
    index = load_index(path, hot=None)
    vectors = index.view().vectors
    assert isinstance(vectors, IvfVectors), "an index without clusters"
    yield "with all clusters in memory", _rate(index, queries, k, None)
    of_lists = num_bytes(vectors.cluster_sizes(), vectors.dimension)
    del index, vectors
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(path, copy)
            for share in (0.0, *shares):
                hot_bytes = max(int(of_lists.max()), int(share * of_lists.sum()))
                held = load_index(copy, hot="ram", hot_bytes=hot_bytes)
                name = f"from the file, with hot_bytes={hot_bytes}"
                yield name + ("" if share else ", one cluster"), _rate(held, queries, k, copy)
    except OSError as error:
        raise ConfigError(
            "no copy of the index can be made to be measured",
            where=str(path.parent),
            found=str(error),
            valid="a folder that can be written, with room for a second copy",
        ) from error


def _rate(index: DocumentIndex, queries: Vectors, k: int, path: Path | None) -> float:
    count, seconds = min(_MOST_SEARCHES, max(len(queries), WARM_UP)), 0.0
    for turn in range(WARM_UP + count):
        query = queries[turn % len(queries)][None]
        if path is not None:
            _give_back(index, path)
        started = time.perf_counter()
        index.search(query, k)
        if turn >= WARM_UP:
            seconds += time.perf_counter() - started
    return count / seconds


def _give_back(index: DocumentIndex, path: Path) -> None:
    vectors = index.view().vectors
    assert isinstance(vectors, TieredVectors), "lists in memory"
    left = give_back_pages(path, *mapped_range(vectors.given[0]))
    if left > 0.5:
        raise ConfigError(
            "the pages of a file cannot be given back here",
            where=str(path),
            found=f"{left:.0%} of them stay in memory",
            valid="a file system on a disk, and Linux 5.4 or later",
            hint="without --measure the shares are counted",
        )


def _queries(path: Path, header: IndexHeader, embedder: str | None) -> Vectors:
    questions, dimension = read_questions(path), header.spec.dimension
    valid = f'two or more, {{"question": text}} or {{"vector": {dimension} numbers}}'
    if len(questions) < 2:
        raise _error("too few questions", path, len(questions), valid)
    rows, texts = list[Any](), dict[int, str]()
    for place, question in enumerate(questions):
        fields = question if isinstance(question, dict) else {"question": question}
        text, row = fields.get("question"), fields.get("vector")
        if isinstance(text, str):
            texts[place] = text
        elif not isinstance(row, list) or len(row) != dimension:
            found = f"{len(row)} numbers" if isinstance(row, list) else repr(question)[:60]
            raise _error(
                "a question cannot be searched for", f"{path}, question {place + 1}", found, valid
            )
        rows.append(row)
    if texts and embedder is None:
        named = f"the model that made the index, which names it {header.fingerprint!r}"
        raise _error("texts without an embedder", "--embedder", None, named)
    if texts:
        made = checked_vectors(
            load_embedder(embedder)(list(texts.values())), dimension, lambda row: f"text {row + 1}"
        )
        for place, vector in zip(texts, made, strict=True):
            rows[place] = vector
    return checked_vectors(rows, dimension, lambda row: f"question {row + 1}")


def _error(what: str, where: object, found: object, valid: str) -> ConfigError:
    return ConfigError(what, where=str(where), found=str(found), valid=valid)
