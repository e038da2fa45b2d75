"""Keep a sample of each cross product, the same in every run; ``--every-case`` keeps all of it.

Of a test on a real Neo4j with several cases half are kept: each takes a second or more.

Tests of all rooms share the servers and the material that the modules beside this one provide.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ["neo4j_server", "arcadedb_server", "kept_conversions", "sample_material"]
for _kit in ("path_kit", "reuse_kit", "shared_calls_kit"):
    pytest.register_assert_rewrite(_kit)

# Before torch and FAISS are imported: threads that spin while they wait take the cores of others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def even_forwards() -> Iterator[None]:
    """Have texts be reused by rows alone: what a busy machine measures decides nothing."""
    from rag_accel.engines.llm.local.batching.forward_cost import ForwardCost

    # Not by the fixture of that name, which would then end after those of the tests.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardCost, "seconds", lambda self, rows: float(rows))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-case",
        action="store_true",
        help="run every case of the tests marked cross_product, not a sample of each",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Judge no example by its time, which is other processes', and draw a third in a sample.

    A test that names its number of examples keeps it; ``--hypothesis-profile`` takes precedence.
    """
    every = settings(deadline=None)
    settings.register_profile("every-case", every)
    settings.register_profile("sample", every, max_examples=every.max_examples // 3)
    settings.load_profile("every-case" if config.getoption("--every-case") else "sample")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the samples leave out; the order of the others stays."""
    if config.getoption("--every-case"):
        return
    products: dict[tuple[object, int | None], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
            continue
        mark = item.get_closest_marker("cross_product")
        if mark is not None:
            products[item.function, mark.kwargs["keep"]].append(item)
        elif item.get_closest_marker("neo4j") is not None:
            products[item.function, None].append(item)
    left_out = {
        item
        for (_, keep), cases in products.items()
        for item in set(cases) - set(sample(cases, -(-len(cases) // 2) if keep is None else keep))
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """Let collections, of which tests need many, look only at what was made since this file began.

    What is there by then are libraries, mostly: with torch and the frameworks loaded, a collection
    of it all costs more than most tests.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        with warnings.catch_warnings(action="ignore"):  # the next test is not to blame for them
            gc.collect()
        gc.freeze()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Let collections leave out what is imported to find the tests, and none run meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def sample(cases: Iterable[pytest.Function], keep: int) -> list[pytest.Function]:
    """Return ``keep`` cases: first those with a value that no other has brought, then any.

    The hash of a case's id decides which come first, so every run and every machine keeps the same
    ones, and tests that share parameters share their cases.
    """
    shuffled = sorted(cases, key=lambda case: sha256(case.callspec.id.encode()).digest())
    seen: set[tuple[int, str]] = set()
    fresh, others = [], []
    for case in shuffled:
        values = set(enumerate(case.callspec.id.split("-")))
        (others if values <= seen else fresh).append(case)
        seen |= values
    return [*fresh, *others][:keep]
