"""Requests over HTTP: a chain in two orders of its texts, and the exactness of answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from exact_engine import EngineAnswer
from exact_prompts import TOLD_APART, TOLERANCE, TextPrompt
from exact_reference import Reference

from rag_accel.kv.reuse_request import ReuseRequest

DOCUMENTS = [
    "The river Aare rises in the glaciers of the Bernese Alps and flows through Thun and Bern.",
    "The clock tower of Bern was built in the thirteenth century and served as its western gate.",
    "Lake Thun was formed after the last ice age; steamers have crossed it since the year 1835.",
]
SYSTEM = "Answer by the context alone, in one sentence, and say so where it holds no answer."


def test_second_order_of_texts_is_loaded(server: str, models: Path) -> None:
    """Every token of the texts comes from the folder once they were seen in another order."""
    pytest.importorskip("langchain_openai")
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "llama")
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("user", "{context}\n\nQuestion: {question}")]
    )

    def ask(documents: list[str], question: str) -> dict[str, int]:
        wanted = ReuseRequest("full", tuple(documents), before="")
        model = ChatOpenAI(
            model="tiny",
            base_url=server,
            api_key="none",
            max_tokens=4,
            temperature=0,
            extra_body=wanted.fields(),
        )
        context = "\n\n".join(documents)
        answer = (prompt | model).invoke({"context": context, "question": question})
        return answer.response_metadata["token_usage"]["prompt_tokens_details"]

    first = ask(DOCUMENTS, "Where does the Aare rise?")
    assert first is not None
    second = ask(DOCUMENTS[::-1], "What crosses the lake?")
    texts = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in DOCUMENTS)
    assert second["cached_tokens"] >= texts


def test_answers_over_http_are_those_of_the_reference(server: str, models: Path) -> None:
    """What is exact stays so behind approximate requests of the same tokens."""
    import httpx

    reference = Reference(models / "llama")
    prompt = TextPrompt.random(random.Random(7))

    def ask(wanted: ReuseRequest | None) -> EngineAnswer:
        body = {
            "model": "tiny",
            "prompt": prompt.ids(),
            "max_tokens": 4,
            "temperature": 0,
            "logprobs": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **({} if wanted is None else wanted.fields()),
        }
        answer = httpx.post(f"{server}/completions", json=body, timeout=60).json()
        (choice,) = answer["choices"]
        ids, found = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        logprobs = [{id: value} for id, value in zip(ids, found, strict=True)]
        cached = answer["usage"]["prompt_tokens_details"]
        said = (answer["kv_transfer_params"] or {}).get("rag_accel", {})
        return EngineAnswer(ids, logprobs, cached["cached_tokens"] if cached else 0, said)

    for _ in range(2):  # encoded in the step, then loaded
        reused = ask(prompt.request("full"))
        assert prompt.reused(reference, reused) < TOLERANCE
        assert prompt.full(reference, reused) > TOLD_APART
    whole = ask(prompt.request("fused", ratio=1.0))
    assert whole.reuse["recomputed_tokens"] == sum(map(len, prompt.texts))
    for exact in (whole, ask(None)):
        assert prompt.full(reference, exact) < TOLERANCE


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_under_the_salt_of_another_is_answered_400(
    server: str, path: str, stream: bool
) -> None:
    import httpx

    full, exact = (ReuseRequest(way, ("one text",), namespace="t") for way in ("full", "exact"))
    asked = {"messages": [{"role": "user", "content": "one text"}], "prompt": "one text"}
    name = "messages" if path.startswith("chat") else "prompt"
    body = {"model": "tiny", "max_tokens": 1, "stream": stream, name: asked[name]}
    for fields in (
        {"cache_salt": full.salt()},
        {**exact.fields(), "cache_salt": full.salt()},
        {"kv_transfer_params": exact.params()},
    ):
        answer = httpx.post(f"{server}/{path}", json={**body, **fields}, timeout=60)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("[RA520] ")
        assert "cache_salt" in answer.json()["error"]["message"]
    for fields in (full.fields(), exact.fields(), {}):
        answer = httpx.post(f"{server}/{path}", json={**body, **fields}, timeout=60)
        assert answer.status_code == 200
