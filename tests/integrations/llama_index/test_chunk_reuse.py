"""Nodes that a query engine retrieved before are not computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from llama_index.core import QueryBundle, get_response_synthesizer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_rag_accel import RagAccelLLM, accelerate
from rag_accel import Accelerator, UncheckedReuseWarning
from rag_accel.engines.llm.local import unchecked

TEXTS = {
    "a": "The height of Mount Fuji is 3776 metres.",
    "b": "A lane holds keys and values of one sequence.",
}


class Orders(BaseRetriever):
    """Returns the nodes that a query names, in its order."""

    def __init__(self, metadata: dict[str, str]) -> None:
        super().__init__()
        self._metadata = metadata

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=TextNode(id_=one, text=TEXTS[one], metadata=self._metadata), score=1)
            for one in query_bundle.query_str
        ]


@pytest.mark.parametrize("metadata", [{}, {"page": "3"}])
@pytest.mark.parametrize("mode", ["compact", "simple_summarize"])
def test_the_second_order_computes_no_text(mode: Any, metadata: dict[str, str]) -> None:
    with Accelerator() as accelerator:
        llm = RagAccelLLM(
            tiny_chat.model(),
            tokenizer=tokenizer(),
            max_tokens=4,
            kv_reuse="full",
            accelerator=accelerator,
        )
        synthesizer = get_response_synthesizer(llm=llm, response_mode=mode)
        engine = RetrieverQueryEngine(Orders(metadata), synthesizer)
        fast = accelerate(engine, accelerator=accelerator)
        used = "prompt_tokens_from_chunks"
        fast.query("ab")
        before = sum(one.get(used, 0) for one in counters(accelerator))
        fast.query("ba")
        after = sum(one.get(used, 0) for one in counters(accelerator))
    texts = [tokenizer()(one, add_special_tokens=False)["input_ids"] for one in TEXTS.values()]
    assert after - before >= sum(map(len, texts))


def test_a_folder_keeps_texts_between_accelerators(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for _ in range(2):
        with Accelerator() as accelerator:
            llm = RagAccelLLM(
                tiny_chat.model(),
                tokenizer=tokenizer(),
                max_tokens=4,
                kv_reuse="full",
                kv_folder=str(folder),
                accelerator=accelerator,
            )
            engine = RetrieverQueryEngine(Orders({}), get_response_synthesizer(llm=llm))
            accelerate(engine, accelerator=accelerator).query("ab")
            (seen,) = [one for one in counters(accelerator) if "chunk_memory_bytes" in one]
            used = seen["prompt_tokens_from_chunks"]
    assert used == sum(
        len(tokenizer()(one, add_special_tokens=False)["input_ids"]) for one in TEXTS.values()
    )
    assert (seen["chunk_hits_disk"], seen.get("chunk_misses", 0)) == (2, 0)


def counters(accelerator: Accelerator) -> list[dict[str, Any]]:
    return list(accelerator.metrics.snapshot()["engines"].values())


def test_fused_without_a_check_is_warned_of_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(unchecked, "_warned", set[str]())
    with Accelerator() as accelerator:
        llm = RagAccelLLM(
            tiny_chat.model(),
            tokenizer=tokenizer(),
            max_tokens=4,
            kv_reuse="fused",
            accelerator=accelerator,
        )
        with pytest.warns(UncheckedReuseWarning, match="check_reuse"):
            assert llm.complete("Which document says it?").raw is not None
