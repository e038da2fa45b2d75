"""What is deleted from a store of ours is gone from what engines keep of its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lc_reuse_programs as programs
import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage, SystemMessage
from llm_harness import eventually
from reuse_kit import num_tokens

from langchain_rag_accel import ChatRagAccel, RagAccelVectorStore
from rag_accel import Accelerator

TEXTS = {name: programs.TEXTS[name] for name in "ab"}
MESSAGES = [SystemMessage("Be brief."), HumanMessage(f"{TEXTS['a']} {TEXTS['b']} Well?")]
Make = Callable[..., Accelerator]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Accelerator] = []

    def accelerator(**options: Any) -> Accelerator:
        made.append(Accelerator(**options))
        return made[-1]

    yield accelerator
    for one in made:
        one.close()


def chat(accelerator: Accelerator, folder: Path | None = None) -> ChatRagAccel:
    return ChatRagAccel(
        model=tiny_chat.model(),
        tokenizer=tokenizer(),
        max_tokens=4,
        accelerator=accelerator,
        kv_reuse="full",
        kv_folder=None if folder is None else str(folder),
    )


def filled_store(accelerator: Accelerator | None) -> RagAccelVectorStore:
    store = RagAccelVectorStore(DeterministicFakeEmbedding(size=8), accelerator=accelerator)
    store.add_texts(list(TEXTS.values()), ids=list(TEXTS))
    return store


def reused(model: ChatRagAccel) -> int:
    message = model.invoke(MESSAGES, documents=list(TEXTS.values()))
    return message.response_metadata["kv_reuse"]["reused_tokens"]


def tokens(name: str) -> int:
    return num_tokens(TEXTS[name])


def test_a_deleted_text_is_computed_again(make: Make) -> None:
    accelerator = make()
    model, store = chat(accelerator), filled_store(accelerator)
    reused(model)
    store.delete(["b"])
    assert reused(model) == tokens("a")


async def test_a_text_deleted_on_a_loop_is_computed_again(make: Make) -> None:
    accelerator = make()
    model, store = chat(accelerator), filled_store(accelerator)
    reused(model)
    await store.adelete(["a"])
    assert reused(model) == 0  # b has seen it


def test_a_deleted_text_is_removed_from_the_folder(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    accelerator = make()
    model, store = chat(accelerator, folder), filled_store(accelerator)
    reused(model)
    # What waits to be written when any text is deleted is not written at all.
    eventually(lambda: len(list(folder.glob("*.kv"))) == 2)
    store.delete(["b"])
    accelerator.close()  # forgets what is to be forgotten
    assert len(list(folder.glob("*.kv"))) == 1


def test_a_text_of_another_namespace_stays(make: Make) -> None:
    mine, theirs = make(namespace="mine"), make(namespace="theirs")
    model = chat(theirs)
    reused(model)
    filled_store(mine).delete(["a"])
    assert reused(model) == num_tokens(*TEXTS.values())
