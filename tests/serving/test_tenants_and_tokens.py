"""Tokens decide tenants, each on an accelerator of its own; files of tokens are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import ScriptedProgram, client_of, serving_app

from langchain_rag_accel import accelerate
from langchain_rag_accel.served import serve_object
from rag_accel.accelerator import Accelerator, current_request
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import END, START
from rag_accel.graph.ragraph import RAGraph
from rag_accel.serving.app import ServingApp
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants
from rag_accel.serving.tokens import TokenFile

ANNA, BERT = "anna-token-0123456789", "bert-token-0123456789"


class LangChainOnly:
    """A registry of the one factory."""

    def names(self) -> tuple[str, ...]:
        return ("langchain",)

    def get(self, name: str) -> Any:
        return serve_object


def token_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def whose() -> Any:
    def answer(text: str) -> str:
        request = current_request.get()
        assert request is not None
        return f"{request.accelerator.options.namespace}: {text}"

    return RunnableLambda(answer)


def tenant_app(obj: Any, tokens: TokenFile | None, **options: Any) -> tuple[ServingApp, Any]:
    registry: Any = LangChainOnly()
    tenants = ServedTenants(ServingTarget("bot", obj), registry=registry)
    return ServingApp(tenants, ServingOptions(**options), tokens), tenants


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_decides_the_tenant_and_nothing_else_does(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, f"# ours\n{ANNA} anna\n\n{BERT} bert\n"))
    app, tenants = tenant_app(whose(), tokens)
    async with client_of(app) as client:
        for token, tenant in ((ANNA, "anna"), (BERT, "bert")):
            headers = {**bearing(token), "X-Namespace": "other", "X-Tenant": "other"}
            answer = await client.post("/invoke", json={"input": "hi"}, headers=headers)
            assert answer.json() == {"output": f"{tenant}: hi"}
    assert sorted(tenants.accelerators) == ["anna", "bert"]
    assert len({id(one) for one in tenants.accelerators.values()}) == 2
    tenants.close()


@pytest.mark.parametrize(
    "headers",
    [{}, bearing("wrong-token-0123456789"), bearing(""), {"Authorization": f"Basic {ANNA}"}],
)
async def test_without_a_valid_token_nothing_is_answered(
    headers: dict[str, str], tmp_path: Path
) -> None:
    tokens = TokenFile(token_file(tmp_path, ANNA))
    program = ScriptedProgram()
    async with client_of(serving_app(program, tokens)) as client:
        for method, path in (
            ("POST", "/invoke"),
            ("POST", "/stream"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
        ):
            refused = await client.request(method, path, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ANNA not in refused.text
        assert (await client.get("/healthz")).json() == {"state": "ready"}
    assert program.num_begun == 0


async def test_two_headers_with_tokens_are_refused(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, ANNA))
    headers = [("Authorization", f"Bearer {token}") for token in (ANNA, BERT)]
    async with client_of(serving_app(ScriptedProgram(), tokens)) as client:
        for given in (headers, headers[::-1]):
            refused = await client.post("/invoke", json={"input": "hi"}, headers=given)
            assert refused.status_code == 400
            assert "Authorization" in refused.json()["error"]["message"]


async def test_metrics_show_a_tenant_its_own(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))
    app, tenants = tenant_app(whose(), tokens)
    async with client_of(app) as client:
        await client.post("/invoke", json={"input": "hi"}, headers=bearing(ANNA))
        await client.post("/invoke", json={"bad": "hi"}, headers=bearing(ANNA))
        anna = (await client.get("/metrics", headers=bearing(ANNA))).text
        bert = (await client.get("/metrics", headers=bearing(BERT))).text
    labels = 'namespace="anna",route="/invoke",status='
    assert f'rag_accel_http_requests_total{{{labels}"200"}} 1.0' in anna
    assert f'rag_accel_http_requests_total{{{labels}"422"}} 1.0' in anna
    assert 'rag_accel_http_request_seconds_count{namespace="anna",route="/invoke"} 2.0' in anna
    assert "anna" not in bert
    assert ANNA not in anna
    tenants.close()


BAD_FILES = {
    "others may read it": (ANNA, 0o644, "mode 644"),
    "a short token": ("short anna", 0o600, "line 1"),
    "three words": (f"{ANNA} anna too", 0o600, "line 1"),
    "two tenants of one": (f"{ANNA} anna\n{ANNA} bert", 0o600, "line 2"),
    "nothing": ("# none\n", 0o600, "no token"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_of_tokens_is_refused_without_showing_one(name: str, tmp_path: Path) -> None:
    text, mode, words = BAD_FILES[name]
    with pytest.raises(ConfigError) as raised:
        TokenFile(token_file(tmp_path, text, mode))
    assert words in str(raised.value)
    assert ANNA not in str(raised.value)
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        TokenFile(tmp_path / "missing")


async def test_tokens_are_read_again_and_stay_where_the_file_is_wrong(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{ANNA} anna")
    app, tenants = tenant_app(whose(), TokenFile(path))
    async with client_of(app) as client:

        async def status(token: str) -> int:
            answer = await client.post("/invoke", json={"input": "hi"}, headers=bearing(token))
            return answer.status_code

        path.write_text(f"{BERT} bert")
        await app.reload_tokens()
        assert [await status(ANNA), await status(BERT)] == [401, 200]
        path.write_text("short")
        with pytest.raises(ConfigError):
            await app.reload_tokens()
        assert [await status(ANNA), await status(BERT)] == [401, 200]
    tenants.close()


def test_an_object_with_its_own_accelerator_serves_one_tenant(tmp_path: Path) -> None:
    graph = RAGraph()
    graph.add_function(0, str.upper, inputs=["input"], output="said")
    graph.add_edge(START, 0).add_edge(0, END)
    tokens = TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))
    with Accelerator(namespace="anna") as accelerator:
        tenants = ServedTenants(ServingTarget("bot", graph, accelerator))
        with pytest.raises(ConfigError, match="serves one tenant"):
            ServingApp(tenants, ServingOptions(), tokens)
        alone = ServedTenants(ServingTarget("bot", graph, accelerator))
        ServingApp(alone, ServingOptions(namespace="anna"))
        alone.close()
        assert not accelerator.closed  # it is the program's


async def test_a_tenant_that_cannot_be_served_is_not_let_in_by_a_reload(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{ANNA} anna")
    with Accelerator(namespace="anna") as accelerator:
        fast = accelerate(whose(), accelerator=accelerator)
        app, _ = tenant_app(fast, TokenFile(path))
        path.write_text(f"{ANNA} anna\n{BERT} bert\n")
        with pytest.raises(ConfigError, match="serves one tenant"):
            await app.reload_tokens()
        async with client_of(app) as client:
            asked = {"input": "hi"}
            refused = await client.post("/invoke", json=asked, headers=bearing(BERT))
            answer = await client.post("/invoke", json=asked, headers=bearing(ANNA))
    assert (refused.status_code, answer.status_code) == (401, 200)


async def test_a_function_makes_a_graph_with_its_accelerator_for_each_tenant(
    tmp_path: Path,
) -> None:
    def make(namespace: str) -> Any:
        graph = RAGraph()
        graph.add_generation(0, prompt="{input}", output="said")
        graph.add_edge(START, 0).add_edge(0, END)
        accelerator = Accelerator(llm=lambda prompt: f"{namespace}: {prompt}", namespace=namespace)
        made.append(accelerator)
        return graph, accelerator

    made: list[Accelerator] = []
    tokens = TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))
    tenants = ServedTenants(ServingTarget("bot", None, make=make))
    async with client_of(ServingApp(tenants, ServingOptions(), tokens)) as client:
        for token, tenant in ((ANNA, "anna"), (BERT, "bert")):
            answer = await client.post("/invoke", json={"input": "hi"}, headers=bearing(token))
            assert answer.json() == {"output": f"{tenant}: hi"}
    assert len(made) == 2
    for accelerator in made:
        accelerator.close()


def test_an_object_that_is_served_as_it_is_knows_no_tenants(tmp_path: Path) -> None:
    tokens = TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))
    with pytest.raises(ConfigError, match="knows no tenants"):
        serving_app(ScriptedProgram(), tokens)
    serving_app(ScriptedProgram(), TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} anna\n")))
