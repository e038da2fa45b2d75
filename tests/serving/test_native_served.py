"""RAGraphs and embedders of accelerators behind HTTP, and how a command's object is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_kit import client_of, serving_app

from rag_accel import Constant, Retry
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import EngineProfile, PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import END, START
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.ragraph import RAGraph
from rag_accel.serving.app import ServingApp
from rag_accel.serving.native import ServedAccelerator, serve_native
from rag_accel.serving.served import ServingTerms
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget, find_target
from rag_accel.serving.tenants import ServedTenants
from rag_accel.testing import FakeEngine


def echo_graph() -> RAGraph:
    graph = RAGraph()
    graph.add_generation(0, prompt="Answer {input}", output="said")
    return graph.add_edge(START, 0).add_edge(0, END)


async def test_a_graph_answers_on_its_accelerator_and_shows_its_counters() -> None:
    with Accelerator(llm=str.upper) as accelerator:
        tenants = ServedTenants(ServingTarget("bot", echo_graph(), accelerator))
        async with client_of(ServingApp(tenants, ServingOptions())) as client:
            answer = await client.post("/invoke", json={"input": "me"})
            assert answer.json() == {"output": "ANSWER ME"}
            told = await client.post("/stream", json={"input": "me"})
            assert '{"text": "ANSWER ME"}' in told.text
            chat = {"model": "bot", "messages": [{"role": "user", "content": "me"}]}
            said = (await client.post("/v1/chat/completions", json=chat)).json()
            assert said["choices"][0]["message"]["content"] == "ANSWER ME"
            metrics = (await client.get("/metrics")).text
        tenants.close()
        assert not accelerator.closed
    assert 'rag_accel_engine_items_total{engine="llm",namespace=""} 3.0' in metrics
    assert (
        'rag_accel_engine_step_seconds_bucket{engine="llm",le="+Inf",namespace=""} 3.0' in metrics
    )


def fails_first() -> Any:
    """Return a model whose first call fails as a connection does."""
    calls: list[str] = []

    def answer(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) == 1:
            raise ConnectionError("the server went away")
        return prompt.upper()

    return answer


def away(query: str, k: int) -> Any:
    raise TimeoutError("the index is away")


async def test_retries_and_fallbacks_are_told_with_the_answer_and_counted() -> None:
    graph = RAGraph().add_retrieval("search", output="docs", fallback=Constant(()))
    graph.add_generation("say", "{docs}{input}", retry=Retry(2, backoff_s=0.0))
    graph.add_edge(START, "search").add_edge("search", "say").add_edge("say", END)
    with Accelerator(llm=fails_first(), index=away) as accelerator:
        tenants = ServedTenants(ServingTarget("bot", graph, accelerator))
        async with client_of(ServingApp(tenants, ServingOptions())) as client:
            told = [(await client.post("/invoke", json={"input": "why?"})).json() for _ in "ab"]
            metrics = (await client.get("/metrics")).text
    assert told == [
        {"output": "WHY?", "retries": {"say": 1}, "fallbacks": {"search": 1}},
        {"output": "WHY?", "fallbacks": {"search": 1}},
    ]
    assert 'rag_accel_retries_total{namespace="",path="say"} 1.0' in metrics
    assert 'rag_accel_fallbacks_total{namespace="",path="search"} 2.0' in metrics


async def test_an_option_that_a_client_sets_wrongly_is_the_clients_mistake() -> None:
    graph = RAGraph(inputs=["input", "k"])
    graph.add_retrieval(0, query="input", top_k=Input("k"), output="docs")
    graph.add_edge(START, 0).add_edge(0, END)
    with Accelerator(index=lambda query, k: [query] * k) as accelerator:
        tenants = ServedTenants(ServingTarget("bot", graph, accelerator))
        async with client_of(ServingApp(tenants, ServingOptions())) as client:
            answer = await client.post("/invoke", json={"input": "a", "k": 2})
            assert answer.status_code == 200
            for wrong in (0, "two", None, {"a": 1}, [1]):
                refused = await client.post("/invoke", json={"input": "a", "k": wrong})
                assert refused.status_code == 422, (wrong, refused.text)
                assert "at k" in refused.json()["error"]["message"]


def test_no_more_run_at_once_than_the_accelerator_takes() -> None:
    for most, expected in ((2, 2), (100, 10)):
        with Accelerator(llm=str.upper, max_requests=10) as accelerator:
            tenants = ServedTenants(ServingTarget("bot", echo_graph(), accelerator))
            app = ServingApp(tenants, ServingOptions(max_requests=most))
            assert app.turns.most == expected


async def test_health_is_that_of_the_accelerator() -> None:
    accelerator = Accelerator(llm=str.upper)
    tenants = ServedTenants(ServingTarget("bot", echo_graph(), accelerator))
    async with client_of(ServingApp(tenants, ServingOptions())) as client:
        assert (await client.get("/healthz")).status_code == 200
        accelerator.close()
        lost = await client.get("/healthz")
    assert (lost.status_code, lost.json()["state"]) == (503, "lost")


def lengths(texts: list[str]) -> Any:
    return np.asarray([[len(text), 1.0] for text in texts], dtype=np.float32)


async def test_an_engine_embeds_in_steps_that_requests_share() -> None:
    engine = FakeEngine(
        EngineProfile(frozenset({PrimitiveKind.EMBEDDING}), max_batch=64),
        compute=lambda payload: lengths(list(payload.texts)),
    )
    with Accelerator(embedder=engine) as accelerator:
        async with client_of(serving_app(ServedAccelerator(accelerator))) as client:
            body = {"model": "bot", "input": ["a" * number for number in range(1, 131)]}
            rows = (await client.post("/v1/embeddings", json=body)).json()["data"]
    assert [row["embedding"][0] for row in rows] == [float(number) for number in range(1, 131)]


def test_what_cannot_be_served_is_told() -> None:
    with Accelerator() as accelerator:
        terms = ServingTerms(accelerator)
        with pytest.raises(ConfigError, match="nothing to serve"):
            serve_native(accelerator, None, terms)
        with pytest.raises(ConfigError, match="--accelerator"):
            serve_native(echo_graph(), None, terms)
        assert serve_native(object(), None, terms) is None
        named = ServingTerms(accelerator, ("question",))
        with (
            Accelerator(llm=str.upper) as given,
            pytest.raises(ConfigError, match="not those of the graph"),
        ):
            serve_native(echo_graph(), given, named)
    with pytest.raises(ConfigError, match=r"found builtins\.object"):
        ServedTenants(ServingTarget("bot", object())).add([""])


MODULE = """
from rag_accel import Accelerator
accelerator = Accelerator()
pair = ("object", accelerator)
thing = "object"
number = 3

def make():
    return pair

def make_for(tenant):
    return pair

def make_of(namespace):
    return namespace, accelerator

async def make_later():
    return pair
"""


@pytest.fixture
def app_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a module of objects in the working directory."""
    (tmp_path / "served_objects.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    import served_objects  # pyright: ignore[reportMissingImports]

    served_objects.accelerator.close()


@pytest.mark.usefixtures("app_module")
def test_an_object_is_found_alone_in_a_pair_or_made() -> None:
    alone = find_target("served_objects:thing")
    assert (alone.name, alone.obj, alone.accelerator) == ("thing", "object", None)
    for target in (
        find_target("served_objects:pair"),
        find_target("served_objects:make"),
        find_target("served_objects:thing", "served_objects:accelerator"),
    ):
        assert target.obj == "object"
        assert isinstance(target.accelerator, Accelerator)
    assert find_target("served_objects:thing", model_name="bot").name == "bot"
    assert find_target("served_objects:make", model_name="bot").name == "bot"
    for function in ("make", "make_of"):  # an object that a function makes is called as its module
        assert find_target(f"served_objects:{function}").name == "served_objects"
    obj, accelerator = find_target("served_objects:make_of").for_tenant("anna")
    assert obj == "anna"
    assert isinstance(accelerator, Accelerator)


@pytest.mark.usefixtures("app_module")
@pytest.mark.parametrize(
    ("spec", "accelerator"),
    [
        ("served_objects", None),
        ("served_objects:", None),
        ("served_objects:missing", None),
        ("served_objects.missing:thing", None),
        ("served_objects:make_for", None),
        ("served_objects:make_later", None),
        ("served_objects:thing", "served_objects:number"),
        ("served_objects:pair", "served_objects:accelerator"),
        ("served_objects:make_of", "served_objects:accelerator"),
    ],
)
def test_a_wrong_name_is_an_error_that_names_it(spec: str, accelerator: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        find_target(spec, accelerator)
    assert "served_objects" in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"port": 70_000},
        {"max_requests": 0},
        {"deadline_s": 0.0},
        {"deadline_s": float("nan")},
        {"drain_s": -1.0},
        {"host": "0.0.0.0"},
    ],
)
def test_an_option_outside_its_range_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        ServingOptions(**given)
    assert f"--{next(iter(given)).replace('_', '-')}" in str(raised.value)
