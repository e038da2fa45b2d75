"""Shares of the places for each tenant: a flood of one refuses no request of another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from serving_kit import AsgiCall, ScriptedProgram, serving_app, until
from test_tenants_and_tokens import ANNA, BERT, token_file

from rag_accel.errors import ConfigError
from rag_accel.serving.app import ServingApp
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants
from rag_accel.serving.tokens import TokenFile

TENANTS = {"anna": ANNA, "bert": BERT}


class TwoTenants(ServedTenants):
    """One scripted program that answers for two tenants."""

    def __init__(self, program: ScriptedProgram) -> None:
        super().__init__(ServingTarget("bot", program))

    def _check_alone(self, served_by: object) -> None:
        pass


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))


class TwoTenantClients:
    """Requests of two tenants to one application whose answers wait for a gate."""

    def __init__(self, tokens: TokenFile, **options: Any) -> None:
        self.gate = asyncio.Event()
        self.program = ScriptedProgram(gate=self.gate)
        self.app = ServingApp(TwoTenants(self.program), ServingOptions(**options), tokens)
        self._asgi = self.app.asgi()

    def ask(self, tenant: str, count: int) -> list[AsgiCall]:
        token = [(b"authorization", f"Bearer {TENANTS[tenant]}".encode())]
        return [
            AsgiCall(self._asgi, "/invoke", {"input": f"{tenant} {number}"}, token)
            for number in range(count)
        ]

    async def flood(self) -> list[AsgiCall]:
        """Have anna ask until she is refused."""
        calls = self.ask("anna", 50)
        await until(lambda: sum(call.status == 429 for call in calls) >= 40)
        return calls


async def test_a_flood_of_one_tenant_refuses_nobody_else(tokens: TokenFile) -> None:
    clients = TwoTenantClients(tokens, max_requests=4, max_requests_per_tenant=2)
    flood = await clients.flood()
    assert clients.program.num_begun == 2
    calls = clients.ask("bert", 2)
    await until(lambda: clients.program.num_begun == 4)
    clients.gate.set()
    await asyncio.gather(*(call.task for call in [*flood, *calls]))
    assert [call.status for call in calls] == [200, 200]
    assert {call.status for call in flood} == {200, 429}


async def test_without_shares_a_flood_takes_all_places(tokens: TokenFile) -> None:
    clients = TwoTenantClients(tokens, max_requests=4)
    flood = await clients.flood()
    calls = clients.ask("bert", 1)
    await calls[0].task
    assert calls[0].status == 429
    clients.gate.set()
    await asyncio.gather(*(call.task for call in flood))


async def test_shares_beyond_all_places_wait_for_one_and_are_not_refused(
    tokens: TokenFile,
) -> None:
    clients = TwoTenantClients(tokens, max_requests=2, max_requests_per_tenant=2)
    flood = await clients.flood()
    calls = clients.ask("bert", 2)
    await until(lambda: clients.app.turns.of("bert").waiting == 2)
    assert clients.program.num_begun == 2  # no more run at once than may
    calls[0].leave()
    await calls[0].task
    assert clients.app.turns.of("bert").waiting == 1
    clients.gate.set()
    await asyncio.gather(*(call.task for call in [*flood, calls[1]]))
    assert calls[1].status == 200
    for tenant in TENANTS:
        turns = clients.app.turns.of(tenant)
        assert (turns.places.running, turns.waiting) == (0, 0)


async def test_a_share_holds_for_the_one_tenant_of_a_server_without_tokens() -> None:
    gate = asyncio.Event()
    program = ScriptedProgram(gate=gate)
    asgi = serving_app(program, max_requests=8, max_requests_per_tenant=1).asgi()
    calls = [AsgiCall(asgi, "/invoke", {"input": str(number)}) for number in range(8)]
    await until(lambda: any(call.task.done() for call in calls))
    refused = next(call for call in calls if call.task.done())
    assert "at most 1 at once" in json.loads(refused.body)["error"]["message"]
    assert program.num_begun == 1
    gate.set()
    await asyncio.gather(*(call.task for call in calls))


async def test_a_failed_request_frees_its_place_of_all(tokens: TokenFile) -> None:
    clients = TwoTenantClients(tokens, max_requests=1, max_requests_per_tenant=1)
    clients.gate.set()
    clients.program.error = RuntimeError("broken")
    calls = clients.ask("anna", 1)
    await calls[0].task
    clients.program.error = None
    calls += clients.ask("bert", 1)
    await calls[1].task
    assert [call.status for call in calls] == [500, 200]


def test_a_share_out_of_range_is_named() -> None:
    with pytest.raises(ConfigError, match="--max-requests-per-tenant"):
        ServingOptions(max_requests_per_tenant=0)
