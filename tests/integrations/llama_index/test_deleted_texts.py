"""What is deleted from a store of ours is gone from what engines keep of its nodes' texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from li_programs import run_in_loop
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_rag_accel import RagAccelLLM, RagAccelVectorStore
from rag_accel import Accelerator


def node(name: str, text: str) -> TextNode:
    return TextNode(
        id_=name,
        text=text,
        metadata={"page": name},
        embedding=[1.0, 0.0],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"source {name}")},
    )


NODES = [
    node("a", "The height of Mount Fuji is 3776 metres."),
    node("b", "A lane holds keys and values of one sequence."),
]


def prompt() -> str:
    texts = [one.get_content(metadata_mode=MetadataMode.LLM) for one in NODES]
    return "\n\n".join([*texts, "Well?"])


def tokens(one: TextNode) -> int:
    text = one.get_content(metadata_mode=MetadataMode.LLM)
    return len(tokenizer()(text, add_special_tokens=False)["input_ids"])


def reused(llm: RagAccelLLM) -> int:
    return llm.complete(prompt(), documents=NODES).raw.use.from_chunks


#: how nodes are deleted, and how many of them stay
WAYS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "source": (lambda store: store.delete("source b"), 1),
    "nodes": (lambda store: store.delete_nodes(["b"]), 1),
    "all": (lambda store: run_in_loop(store.aclear()), 0),
}


@pytest.mark.parametrize(("delete", "left"), WAYS.values(), ids=WAYS)
def test_a_deleted_node_is_computed_again(delete: Callable[[Any], Any], left: int) -> None:
    with Accelerator() as accelerator:
        llm = RagAccelLLM(
            tiny_chat.model(),
            tokenizer=tokenizer(),
            max_tokens=4,
            kv_reuse="full",
            accelerator=accelerator,
        )
        store = RagAccelVectorStore(accelerator=accelerator)
        store.add(NODES)
        reused(llm)
        assert reused(llm) == sum(map(tokens, NODES))
        delete(store)
        assert reused(llm) == sum(map(tokens, NODES[:left]))
