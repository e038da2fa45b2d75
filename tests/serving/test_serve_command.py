"""``rag-accel serve`` as a process: a chain of LangChain answers over HTTP until SIGTERM."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import openai
import pytest
from serving_kit import serving_process

from rag_accel.cli import main

CHAIN = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from itertools import repeat

model = GenericFakeChatModel(messages=repeat(AIMessage("Built in 1932 of steel.")))
chain = ChatPromptTemplate.from_template("Answer: {question}") | model
"""


@pytest.mark.timeout(120)
def test_a_chain_answers_streams_and_drains(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CHAIN)
    with serving_process(tmp_path, "app:chain", "--input", "question") as (process, url):
        asked = {"question": "When was it built?"}
        with httpx.Client(base_url=url, timeout=30) as client:
            whole = client.post("/invoke", json=asked)
            assert whole.json() == {"output": "Built in 1932 of steel."}, whole.text
            with client.stream("POST", "/stream", json=asked) as response:
                events = [line[6:] for line in response.iter_lines() if line]
            assert events[-1] == "[DONE]"
            texts = [json.loads(event)["text"] for event in events[:-1]]
            assert len(texts) > 1
            assert "".join(texts) == "Built in 1932 of steel."
            assert client.get("/healthz").json() == {"state": "ready"}
            assert "server" not in whole.headers
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as bot:
            answer = bot.chat.completions.create(
                model="chain", messages=[{"role": "user", "content": "When?"}]
            )
            assert answer.choices[0].message.content == "Built in 1932 of steel."
            assert [model.id for model in bot.models.list()] == ["chain"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def test_an_object_that_is_not_there_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in ("no_such_module:chain", "json:no_such_name", "json"):
        assert main(["serve", spec]) == 2
        line = capsys.readouterr().err
        assert line.startswith("rag-accel: [RA100] ")
        assert line.count("\n") == 1


def test_an_open_address_needs_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "json:dumps", "--host", "0.0.0.0"]) == 2
    assert "--token-file" in capsys.readouterr().err
