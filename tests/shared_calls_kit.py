"""Tests that hold wherever concurrent callers share the calls to an embeddings server."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import openai
import pytest
from embeddings_server import EmbeddingsServer, Refusal, vector_of

from rag_accel import Accelerator
from rag_accel.adoption.embeddings import HostedCalls
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.errors import EngineOutputError

#: bounds a hang; nothing is measured
PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    """Yield a loopback server of embeddings."""
    with EmbeddingsServer() as made:
        yield made


@pytest.fixture
async def opened() -> AsyncIterator[list[Any]]:
    """Yield a list of openai clients, whose connections end with the test.

    Nothing else closes them, and a socket that is collected open warns.
    """
    clients: list[Any] = []
    yield clients
    for client in clients:
        closing = client.close()
        if closing is not None:
            await closing


@pytest.fixture
def plain(make: Any) -> Any:
    """Give embeddings as a program makes them."""
    return make()


class SharedCalls:
    """Tests of an integration's embeddings; a subclass tells how a text is embedded.

    Its module has the fixtures ``server``, ``opened`` and ``plain`` of this one, and ``make``,
    which makes embeddings of a framework on the server.
    """

    #: has ``activate`` and ``accelerate``
    integration: ModuleType
    coverage: Callable[[], Any]
    #: names of the clients of an object
    clients: Sequence[str]
    #: the error of a caller whose text the server refuses, and of a caller who asks too often
    bad_text: type[Exception] = openai.BadRequestError
    too_often: type[Exception] = openai.RateLimitError
    #: errors of callers with an equal text if the server refuses the key of the first call
    first_refused: Sequence[type[Exception]] = (openai.AuthenticationError,)
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

    @pytest.fixture
    def fast(self, plain: Any, accelerator: Accelerator) -> Any:
        return self.integration.accelerate(plain, accelerator=accelerator)

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

    @pytest.mark.parametrize("on_loop", [True, False])
    async def test_equal_questions_are_one_call(
        self, on_loop: bool, server: EmbeddingsServer, fast: Any
    ) -> None:
        equal = ["equal"] * 256
        if on_loop:
            found = await self.embed_together(fast, equal)
        else:
            with ThreadPoolExecutor(32) as pool:
                found = list(pool.map(functools.partial(self.embed, fast), equal))
        assert found == [vector_of("equal")] * 256
        assert server.calls == [["equal"]]

    async def test_each_caller_has_a_vector_of_its_own(self, fast: Any) -> None:
        first, second = await self.embed_together(fast, ["a", "a"])
        first[0] = 7.0
        assert second == vector_of("a")
        assert await self.aembed(fast, "a") == vector_of("a")

    async def test_an_error_is_each_callers_own(self, server: EmbeddingsServer, fast: Any) -> None:
        server.bad = {"bad"}
        found = await self.embed_together(fast, ["bad"] * 8)
        assert {type(error) for error in found} == {self.bad_text}
        assert len({id(error) for error in found}) == 8
        with pytest.raises(self.bad_text):
            await self.aembed(fast, "bad")

    async def test_a_refused_leader_leaves_the_others_to_ask(
        self, server: EmbeddingsServer, fast: Any
    ) -> None:
        server.refusals.extend([Refusal(401)])
        found = await self.embed_together(fast, ["a"] * 16)
        errors = [answer for answer in found if isinstance(answer, BaseException)]
        assert [type(error) for error in errors] == list(self.first_refused)
        assert [answer for answer in found if answer not in errors] == [vector_of("a")] * (
            16 - len(errors)
        )
        assert len(server.calls) <= 3

    async def test_a_caller_that_is_cancelled_takes_nobody_with_it(
        self, server: EmbeddingsServer, fast: Any
    ) -> None:
        server.hangs = True
        asking = [asyncio.ensure_future(self.aembed(fast, "a")) for _ in range(3)]
        leader, follower, leaving = asking
        while not server.calls:  # noqa: ASYNC110 - a thread without a loop fills it
            await asyncio.sleep(0.001)
        for task in (leaving, leader):
            task.cancel()
        await asyncio.wait([leaving])
        server.hangs = False
        assert await follower == vector_of("a")
        await asyncio.wait([leader])
        assert leaving.cancelled()
        assert leader.cancelled()

    async def test_a_blocking_call_does_not_wait_for_a_task_of_its_own_loop(
        self, fast: Any
    ) -> None:
        task = asyncio.ensure_future(self.aembed(fast, "a"))
        await asyncio.sleep(0)
        assert self.embed(fast, "a") == vector_of("a")
        assert await task == vector_of("a")

    def test_a_lone_caller_asks_in_its_own_thread(
        self, server: EmbeddingsServer, fast: Any
    ) -> None:
        before = set(threading.enumerate())
        for number in range(3):
            assert self.embed(fast, f"{number}") == vector_of(f"{number}")
        asking = {thread.name for thread in set(threading.enumerate()) - before}
        assert "hosted-embedding" not in asking
        assert [len(texts) for texts in server.calls] == [1, 1, 1]

    def test_no_cache_asks_each_time(self, server: EmbeddingsServer, plain: Any) -> None:
        with Accelerator(strict=True, hosted_cache_mb=0) as accelerator:
            fast = self.integration.accelerate(plain, accelerator=accelerator)
            assert [self.embed(fast, "a") for _ in range(3)] == [vector_of("a")] * 3
        assert [list(texts) for texts in server.calls] == [["a"]] * 3

    async def test_another_model_behind_the_name_is_asked_again(
        self, server: EmbeddingsServer, fast: Any
    ) -> None:
        texts = self.texts[:16]
        await self.embed_together(fast, texts)
        server.vector = lambda text: vector_of(f"new {text}")
        server.answers_as = "another"
        await self.embed_together(fast, self.texts[16:])
        assert await self.embed_together(fast, texts) == [
            vector_of(f"new {text}") for text in texts
        ]

    async def test_keys_share_no_call_and_no_vector(
        self, server: EmbeddingsServer, plain: Any, accelerator: Accelerator
    ) -> None:
        keys = ["anna", "bert", "carl"]
        with self.integration.activate(accelerator):
            for key in keys:
                set_keys(plain, self.clients, key)
                texts = [f"{key}'s", "everybody's"] * 8
                expected = [vector_of(text) for text in texts]
                assert await self.embed_together(plain, texts) == expected
        heard = [(call.key, text) for call in server.heard for text in call.texts]
        texts_of = {key: [f"{key}'s", "everybody's"] for key in keys}
        assert sorted(heard) == sorted((key, text) for key in keys for text in texts_of[key])

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

    def test_it_is_said_that_callers_share_calls(self, fast: Any) -> None:
        said = self.integration.explain(fast)
        assert "recognised server: queries and short lists of all requests share its calls" in said

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


def set_keys(embeddings: Any, clients: Sequence[str], key: str) -> None:
    """Give the clients of an object, or of its resources, another key."""
    for name in clients:
        client = getattr(embeddings, name)
        is_client = isinstance(client, openai.OpenAI | openai.AsyncOpenAI)
        (client if is_client else client._client).api_key = key


class EqualProxy:
    """A callable that says it equals the function it stands for, as tracers' proxies do."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return bool(self.function == other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _wrapt_proxy(function: Any) -> Any:
    """Return wrapt's proxy of a function, as tracers that nobody knows set it."""
    wrapt = pytest.importorskip("wrapt")
    return wrapt.FunctionWrapper(function, lambda wrapped, instance, args, kw: wrapped(*args, **kw))


Change = Callable[[Any], Any]


class HostedRecognition:
    """Tests of which objects share calls: where nothing can differ between callers.

    A subclass's module has the fixtures ``make``, which makes embeddings, and ``plain``.
    """

    hosted_calls: Callable[..., HostedCalls]
    #: names of the clients of an object
    clients: Sequence[str]
    #: arguments of objects whose settings are data
    shared: Sequence[dict[str, Any]]
    #: arguments of objects with something of the user's, and the reason for each
    refused: Sequence[tuple[dict[str, Any], str]]
    #: changes after which calls are shared no more
    changes: Mapping[str, Change]
    #: changes after each of which calls are shared in another group
    settings: Sequence[Change]
    #: owners and names of the functions by which an object asks
    functions: Sequence[tuple[Any, str]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of each row of the tables."""
        rows: dict[str, tuple[Any, Any]] = {
            "fields": (self.shared, range(len(self.shared))),
            "refusal": (self.refused, [why for _, why in self.refused]),
            "change": (self.changes.values(), list(self.changes)),
            "function": (self.functions, [name for _, name in self.functions]),
        }
        for name in rows.keys() & set(metafunc.fixturenames):
            values, ids = rows[name]
            metafunc.parametrize(name, values, ids=[str(id) for id in ids])

    def calls(self, embeddings: Any) -> HostedCalls:
        """Return how an object asks; raise ``NotAdoptedError`` where its calls are not shared."""
        return type(self).hosted_calls(embeddings, type(embeddings))

    def shares(self, embeddings: Any) -> bool:
        """Return whether an object's calls may be shared."""
        try:
            self.calls(embeddings)
        except NotAdoptedError:
            return False
        return True

    def test_an_object_whose_settings_are_data_shares_calls(
        self, make: Any, fields: dict[str, Any]
    ) -> None:
        assert self.shares(make(**fields))

    def test_an_object_with_something_of_the_users_says_why_it_shares_none(
        self, make: Any, refusal: tuple[dict[str, Any], str]
    ) -> None:
        fields, why = refusal
        with pytest.raises(NotAdoptedError, match=why):
            self.calls(make(**fields))

    def test_a_change_is_seen_at_the_next_look(self, plain: Any, change: Change) -> None:
        assert self.shares(plain)
        change(plain)
        assert not self.shares(plain)

    @pytest.mark.parametrize("stand_in", [EqualProxy, functools.partial, _wrapt_proxy])
    def test_a_stand_in_for_a_function_is_seen(
        self,
        plain: Any,
        function: tuple[Any, str],
        stand_in: Callable[[Any], Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        owner, name = function
        assert self.shares(plain)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stand_in(getattr(owner, name)))
            assert not self.shares(plain)
        assert self.shares(plain)

    def test_a_group_tells_settings_and_keys_apart(self, plain: Any) -> None:
        groups = [self.calls(plain).group]
        for change in (*self.settings, lambda one: set_keys(one, self.clients, "sk-secret")):
            change(plain)
            groups.append(self.calls(plain).group)
        assert len(set(groups)) == len(groups)
        assert "secret" not in groups[-1]

    def test_a_call_is_not_sent_with_a_key_that_has_changed_since(self, plain: Any) -> None:
        found = self.calls(plain)
        set_keys(plain, self.clients, "another")
        with pytest.raises(EngineOutputError, match="changed"):
            found.ask(["text"], None)
