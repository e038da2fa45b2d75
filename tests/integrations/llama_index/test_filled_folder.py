"""The first question to a query engine over a filled folder computes no token of its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_chat
from fake_runner import tokenizer
from llama_index.core import QueryBundle, get_response_synthesizer
from llama_index.core.prompts.chat_prompts import CHAT_TEXT_QA_PROMPT
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_rag_accel import RagAccelLLM, accelerate
from rag_accel import Accelerator
from rag_accel.cli.corpus import read_corpus
from rag_accel.engine_api import Message
from rag_accel.engines.llm.local.prefill.filling import FillOptions, fill_folder

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


def prompt() -> list[Message]:
    """Return the messages that a query engine sends, with the place of the nodes."""
    sent = CHAT_TEXT_QA_PROMPT.format_messages(context_str="{context}", query_str="Well?")
    return [Message(one.role.value, str(one.content)) for one in sent]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("metadata", [{}, {"page": "3", "file": "fuji.txt"}])
def test_the_first_question_computes_no_token_of_the_nodes(
    tmp_path: Path, metadata: dict[str, str], count: int
) -> None:
    texts = as_filled(tmp_path, metadata)
    fill_folder(
        tmp_path / "kept",
        tiny_chat.model(),
        texts,
        prompt=prompt(),
        tokenizer=tokenizer(),
        options=FillOptions(neighbours=count, pool_bytes=1 << 24),
        embed=lambda given: np.eye(len(given), dtype=np.float32),
    )
    with Accelerator() as accelerator:
        llm = RagAccelLLM(
            tiny_chat.model(),
            tokenizer=tokenizer(),
            max_tokens=4,
            kv_reuse="full",
            kv_folder=str(tmp_path / "kept"),
            kv_recipe="neighbours" if count else "alone",
            accelerator=accelerator,
        )
        engine = RetrieverQueryEngine(Orders(metadata), get_response_synthesizer(llm=llm))
        accelerate(engine, accelerator=accelerator).query("ba")
        engines = accelerator.metrics.snapshot()["engines"].values()
        (seen,) = [one for one in engines if "chunk_memory_bytes" in one]
    assert seen["prompt_tokens_from_chunks"] == sum(map(len, map(ids, texts)))
    assert (seen["chunk_hits_disk"], seen.get("chunk_misses", 0)) == (2, 0)


def ids(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def as_filled(folder: Path, metadata: dict[str, Any]) -> list[str]:
    import json

    path = folder / "texts.jsonl"
    lines = [json.dumps({"text": one, "metadata": metadata}) for one in TEXTS.values()]
    path.write_text("\n".join(lines))
    return read_corpus(path, metadata=True, strip=True)
