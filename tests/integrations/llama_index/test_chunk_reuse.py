"""Documents that a call names are not computed again, whichever call it is."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_rag_accel import RagAccelLLM
from rag_accel import Accelerator

TEXTS = {
    "a": "The height of Mount Fuji is 3776 metres.",
    "b": "A lane holds keys and values of one sequence.",
}


PROMPTS = (f"{TEXTS['a']} {TEXTS['b']} Well?", f"{TEXTS['b']} {TEXTS['a']} Well?")
NODES = [
    NodeWithScore(node=TextNode(text=TEXTS["a"], metadata={"page": "3"})),
    TextNode(text=TEXTS["b"]),
]


def chatted(prompt: str) -> list[ChatMessage]:
    system = ChatMessage(role=MessageRole.SYSTEM, content="Be brief.")
    return [system, ChatMessage(role=MessageRole.USER, content=prompt)]


async def last_of(stream: Any) -> Any:
    pieces = [piece async for piece in await stream]
    return pieces[-1]


async def asked(llm: RagAccelLLM, call: str, prompt: str, **options: Any) -> Any:
    given = prompt if "complete" in call else chatted(prompt)
    found = getattr(llm, call)(given, **options)
    if call.startswith("astream"):
        return await last_of(found)
    if call.startswith("a"):
        return await found
    return list(found)[-1] if call.startswith("stream") else found


def model(accelerator: Accelerator, kv_reuse: Any = "full") -> RagAccelLLM:
    return RagAccelLLM(
        tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        kv_reuse=kv_reuse,
        accelerator=accelerator,
    )


@pytest.mark.parametrize(
    "call",
    [
        *("chat", "achat", "stream_chat", "astream_chat"),
        *("complete", "acomplete", "stream_complete", "astream_complete"),
    ],
)
async def test_a_call_may_name_its_documents(accelerator: Accelerator, call: str) -> None:
    llm = model(accelerator)
    await asked(llm, call, PROMPTS[0], documents=NODES)
    second = await asked(llm, call, PROMPTS[1], documents=[TEXTS["b"], NODES[0]])
    reused = sum(
        len(tokenizer()(one, add_special_tokens=False)["input_ids"]) for one in TEXTS.values()
    )
    assert second.raw.use.from_chunks == reused
    assert second.additional_kwargs["kv_reuse"] == {
        "mode": "full",
        "recipe": "neighbours",
        "ratio": 0.0,
        "reused_tokens": reused,
        "recomputed_tokens": 0,
        "preprocessed_tokens": len(tokenizer()(TEXTS["b"], add_special_tokens=False)["input_ids"]),
        "approximate_tokens": reused,
        "exact": False,
    }
