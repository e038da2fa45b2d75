"""The first question to a chain over a filled folder computes no token of its documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_chat
from fake_runner import tokenizer
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from lc_reuse_programs import joined
from reuse_kit import num_tokens

from langchain_rag_accel import ChatRagAccel, accelerate
from rag_accel import Accelerator
from rag_accel.cli import main

TEXTS = [
    "The height of Mount Fuji is 3776 metres.\n",
    "A lane holds keys and values of one sequence.",
    "The guide said which of the documents it is.",
]
SYSTEM = "Answer by the documents."
BEFORE = "These are the documents:\n"
USER = BEFORE + "{context}\n\nWhich document says {question}?"
Fill = Callable[..., None]


class All(BaseRetriever):
    """Returns all documents, the last one first."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(page_content=text) for text in reversed(TEXTS)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_chat.model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def fill(saved: Path, tmp_path: Path) -> Fill:
    """Return a function that runs the command over the texts and a prompt in files."""
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": one}) for one in TEXTS))
    (tmp_path / "system").write_text(SYSTEM)
    (tmp_path / "before").write_text(BEFORE)
    (tmp_path / "prompt.json").write_text(
        json.dumps([{"role": "system", "content": f"{SYSTEM}\n{{context}}"}])
    )

    def run(*options: str) -> None:
        named = {one: str(tmp_path / one) for one in ("system", "before", "prompt.json")}
        given = [named.get(one, one) for one in options]
        texts = str(tmp_path / "texts.jsonl")
        line = ["cache", "fill", str(tmp_path / "kept"), "--model", str(saved), "--texts", texts]
        assert main([*line, *given]) == 0

    return run


def ask(saved: Path, folder: Path, messages: list[tuple[str, str]], **options: Any) -> Any:
    """Return what a chain's first answer says of its prompt."""
    with Accelerator() as accelerator:
        model = ChatRagAccel(
            model=str(saved),
            max_tokens=4,
            kv_folder=str(folder),
            accelerator=accelerator,
            **{"kv_reuse": "full", **options},
        )
        chain = (
            {"context": All() | joined, "question": RunnablePassthrough()}
            | ChatPromptTemplate.from_messages(messages)
            | model
        )
        answer = accelerate(chain, accelerator=accelerator).invoke("how high it is")
        (seen,) = [
            one
            for one in accelerator.metrics.snapshot()["engines"].values()
            if "chunk_memory_bytes" in one
        ]
        assert seen.get("chunk_misses", 0) == 0
        return answer.response_metadata["kv_reuse"]


def test_the_first_question_computes_no_token_of_the_documents(
    fill: Fill, saved: Path, tmp_path: Path
) -> None:
    fill("--system", "system", "--prompt", "before")
    used = ask(saved, tmp_path / "kept", [("system", SYSTEM), ("user", USER)])
    assert used == {
        "mode": "full",
        "recipe": "neighbours",
        "ratio": 0.0,
        "reused_tokens": num_tokens(*TEXTS),
        "recomputed_tokens": 0,
        "preprocessed_tokens": 0,
        "approximate_tokens": num_tokens(*TEXTS),
        "exact": False,
    }
