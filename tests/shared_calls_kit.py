"""What holds wherever concurrent callers share the calls to an embeddings server."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from embeddings_server import EmbeddingsServer, Refusal, vector_of

from rag_accel import Accelerator

#: bounds a hang; nothing is measured
PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    """Yield a loopback server of embeddings."""
    with EmbeddingsServer() as made:
        yield made


@pytest.fixture
def plain(make: Any) -> Any:
    """Give embeddings as a program makes them."""
    return make()


class SharedCalls:
    """Tests of an integration's embeddings; a subclass tells how a text is embedded.

    Its module has the fixtures ``server`` and ``plain`` of this one, and ``make``, which makes
    embeddings of a framework on the server.
    """

    #: has ``activate`` and ``accelerate``
    integration: ModuleType
    coverage: Callable[[], Any]
    #: what the caller of a text gets that the server refuses, and one who comes too often
    bad_text: type[Exception]
    too_often: type[Exception]
    #: options of embeddings that try ``tries`` times
    trying: dict[str, Any]
    tries: int
    #: how often in a row the server may be too busy for embeddings as a program makes them
    num_passing = 1
    texts = [f"text {number}" for number in range(32)]

    def embed(self, plain: Any, text: str) -> list[float]:
        """Return the vector of a query."""
        raise NotImplementedError

    async def aembed(self, plain: Any, text: str) -> list[float]:
        """Return the vector of a query on the caller's loop."""
        raise NotImplementedError

    async def embed_together(self, plain: Any, texts: list[str]) -> list[Any]:
        """Return vectors or errors."""
        asking = (self.aembed(plain, text) for text in texts)
        return await asyncio.gather(*asking, return_exceptions=True)

    def test_callers_in_threads_share_calls(
        self, server: EmbeddingsServer, plain: Any, accelerator: Accelerator
    ) -> None:
        start = threading.Barrier(len(self.texts))

        def embed(text: str) -> list[float]:
            start.wait(PATIENCE_S)
            return self.embed(plain, text)

        with (
            self.integration.activate(accelerator),
            self.coverage() as meter,
            ThreadPoolExecutor(len(self.texts)) as pool,
        ):
            assert list(pool.map(embed, self.texts)) == [vector_of(text) for text in self.texts]
        # A machine that is busy lets threads arrive one after the other; tasks of a loop do not.
        assert len(server.calls) <= len(self.texts) // 2
        assert meter.passed_by == 0

    @pytest.mark.parametrize("activated", [True, False])
    async def test_callers_on_a_loop_share_calls(
        self, activated: bool, server: EmbeddingsServer, plain: Any, accelerator: Accelerator
    ) -> None:
        if activated:
            with self.integration.activate(accelerator):
                found = await self.embed_together(plain, self.texts)
        else:
            fast = self.integration.accelerate(plain, accelerator=accelerator)
            found = await self.embed_together(fast, self.texts)
        assert found == [vector_of(text) for text in self.texts]
        assert len(server.calls) <= 8

    async def test_a_bad_text_fails_alone(
        self, server: EmbeddingsServer, plain: Any, accelerator: Accelerator
    ) -> None:
        bad = self.texts[20]
        server.bad = {bad}
        with self.integration.activate(accelerator):
            found = dict(zip(self.texts, await self.embed_together(plain, self.texts), strict=True))
        assert isinstance(found.pop(bad), self.bad_text)
        assert found == {text: vector_of(text) for text in self.texts if text != bad}

    async def test_a_refusal_that_passes_loses_nothing(
        self, server: EmbeddingsServer, plain: Any, accelerator: Accelerator
    ) -> None:
        server.refusals.extend([Refusal(429, "0.05")] * self.num_passing)
        with self.integration.activate(accelerator):
            found = await self.embed_together(plain, self.texts)
        assert found == [vector_of(text) for text in self.texts]

    async def test_a_refusal_that_stays_is_each_callers_own_error(
        self, server: EmbeddingsServer, make: Any, accelerator: Accelerator
    ) -> None:
        plain = make(**self.trying)
        server.refusals.extend([Refusal(429, "0.01")] * 200)
        with self.integration.activate(accelerator):
            found = await self.embed_together(plain, self.texts[:8])
        assert {type(error) for error in found} == {self.too_often}
        alone = [texts for texts in server.calls if len(texts) == 1]
        assert len(alone) <= 8 * self.tries  # as without the accelerator

    def test_an_object_that_is_gone_is_kept_by_nothing(
        self, make: Any, accelerator: Accelerator
    ) -> None:
        passing = make()
        gone = weakref.ref(passing)
        with self.integration.activate(accelerator):
            self.embed(passing, "x")
        del passing
        # The engine's thread lets go of its last call.
        _wait_until(lambda: gc.collect() >= 0 and gone() is None, "an object that nobody holds")


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that other threads bring about; fail if they do not."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, f"still waiting for {what}"
        time.sleep(0.001)
