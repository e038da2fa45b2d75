"""A server of requests of any workflow over one scheduler (HedraRAG section 4.1, Listing 1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Unpack

from rag_accel.accelerator import Accelerator
from rag_accel.config import OptionArguments, Options
from rag_accel.errors import ConfigError, ForkedError, GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.ragraph import RAGraph
from rag_accel.server.pending_results import PendingResults
from rag_accel.server.stats import ServedId, ServedResult, ServerStats

DEFAULT_MAX_UNFETCHED = 4096
NAME_LEN = 80
"""Most characters of a name made of a graph's stages."""


def inputs_of(graph: FrozenRAGraph, value: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's values by the names of the graph's inputs.

    Raises:
        GraphError: if it is not clear which of them ``value`` is.
    """
    left = [str(name) for name in graph.inputs if name not in (*named, *graph.optional)]
    if "input" in left or len(left) == 1:
        return {"input" if "input" in left else left[0]: value, **named}
    raise GraphError(
        "it is not clear which input of the graph the request's value is",
        found=", ".join(left) or "every input given by name",
        valid="an input named 'input', or just one that is not given by name",
        hint="give the others as keyword arguments",
    )


def name_of(graph: FrozenRAGraph) -> str:
    """Return the graph's stages as a name."""
    name = " > ".join(graph.by_name)
    return name if len(name) <= NAME_LEN else name[: NAME_LEN - 3] + "..."


class Server:
    """A server that starts requests at once and hands out their results as they end.

    Requests of all workflows share the scheduler, so that their work meets in batches::

        from rag_accel import END, START, RAGraph
        from rag_accel.server import Server

        hyde = RAGraph()
        hyde.add_generation(0, prompt="Write a passage on {input}", output="passage")
        hyde.add_retrieval(1, query="passage", top_k=1, output="docs")
        hyde.add_generation(2, prompt="{docs}")
        hyde.add_edge(START, 0).add_edge(0, 1).add_edge(1, 2).add_edge(2, END)
        echo = RAGraph()
        echo.add_generation(0, prompt="Answer {input}")
        echo.add_edge(START, 0).add_edge(0, END)

        with Server(llm=str.upper, index=lambda query, k: [f"found by {query}"][:k]) as server:
            first = server.add_request("RAG", hyde, program="hyde")
            second = server.add_request("me", echo, program="echo")
            print(server.result(second))
            for result in server:
                print(result.program, "->", result.unwrap())

    prints ``ANSWER ME``, then ``hyde -> [1] FOUND BY WRITE A PASSAGE ON RAG``.

    Each result is handed out once, by ``ready``, iteration, ``wait`` or ``result``, to one caller.
    A caller that waits for one id gets it; all others come in the order in which their requests
    ended. At most ``max_unfetched`` results wait to be fetched; past that the oldest is dropped and
    counted, since one client that never fetches must not stop the others from being served.

    All methods may be called from any thread. The user's functions and borrowed engines run in
    threads of the accelerator's (``call_threads``), as with ``Accelerator.submit``.

    Differs: the paper's server knows models and indexes by name; this one takes the folder of a
    model and an index object.

    Args:
        llm, embedder, index, reranker, engines, options: as an ``Accelerator`` takes them; so are
            single options as keyword arguments, such as ``max_requests``.
        generator: the name that the paper has for ``llm``, in its place.
        accelerator: use this one instead of making one; it is then not closed with the server.
        max_unfetched: results kept until they are fetched.

    Raises:
        ConfigError: on a bad option, or engines or options together with ``accelerator``.
    """

    def __init__(
        self,
        *,
        llm: Any = None,
        embedder: Any = None,
        index: Any = None,
        reranker: Any = None,
        generator: Any = None,
        engines: Mapping[str, Any] | None = None,
        options: Options | None = None,
        accelerator: Accelerator | None = None,
        max_unfetched: int = DEFAULT_MAX_UNFETCHED,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        if not isinstance(max_unfetched, int) or max_unfetched < 1:
            raise ConfigError(
                "option out of range", where="max_unfetched", found=max_unfetched, valid="from 1"
            )
        if llm is not None and generator is not None:
            raise ConfigError(
                "a server has one default language model",
                where="Server(llm=, generator=)",
                found="both",
                valid="one of them: they are the same",
                hint="give further models as engines={name: model}",
            )
        llm = llm if llm is not None else generator
        roles = {"llm": llm, "embedder": embedder, "index": index, "reranker": reranker}
        given = {**roles, "engines": engines, "options": options, **arguments}
        given = {name: value for name, value in given.items() if value is not None}
        if accelerator is not None and given:
            raise ConfigError(
                "a server with an accelerator of its own takes no engines and no options",
                found=", ".join(sorted(given)),
                hint="give them to the Accelerator",
            )
        self._is_owner = accelerator is None
        self._accelerator = accelerator if accelerator is not None else Accelerator(**given)
        self._results = PendingResults(self._accelerator.calls, max_unfetched)

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that serves the requests."""
        return self._accelerator

    def add_request(
        self,
        input: Any,
        graph: RAGraph | FrozenRAGraph,
        /,
        *,
        deadline_s: float | None = None,
        program: str | None = None,
        outputs: Sequence[str] | None = None,
        **inputs: Any,
    ) -> ServedId:
        """Start a request and return its id at once.

        Args:
            input: the value of the graph's input ``input``, or of its only one not in ``inputs``.
            graph: the workflow; another one for each request, if you like.
            deadline_s: seconds after which it fails with DeadlineError.
            program: the workflow's name in statistics; by default its stages.
            outputs: values to return as a dict instead of the one before END.
            inputs: further inputs of the graph.

        Raises:
            BusyError: if ``max_requests`` requests are live.
            GraphError: if the graph breaks a rule, or the inputs do not fit.
            ConfigError: on a bad deadline.
            ClosedError: after ``close`` or ``drain``.
            ForkedError: in a forked child.
        """
        pending = self._pending
        if not isinstance(graph, RAGraph | FrozenRAGraph):
            raise GraphError("this is no graph", found=type(graph).__name__, valid="a RAGraph")
        frozen = graph.freeze()
        values = inputs_of(frozen, input, inputs)
        served = pending.open(program if program is not None else name_of(frozen))
        try:
            handle = self._accelerator.submit(
                frozen, outputs=outputs, deadline_s=deadline_s, **values
            )
        except BaseException as error:
            pending.withdraw(served, error)
            raise
        pending.follow(served, handle, folds=bool(frozen.reducers))
        return served.id

    def ready(self, timeout_s: float | None = 0.0) -> list[ServedResult]:
        """Return the results since the last call, in the order in which requests ended.

        Args:
            timeout_s: seconds to wait for the first if there is none; None waits until there is
                one, or until the server is closed and nothing can come any more.

        Raises:
            ConfigError: on a bad timeout.
            ForkedError: in a forked child.
        """
        pending = self._pending
        return pending.listeners.wait(None, pending.take_ready, timeout_s) or []

    async def aready(self, timeout_s: float | None = 0.0) -> list[ServedResult]:
        """Return the results since the last call, without blocking the loop; see ``ready``."""
        pending = self._pending
        return await pending.listeners.await_(None, pending.take_ready, timeout_s) or []

    def __iter__(self) -> Iterator[ServedResult]:
        """Yield results as they end, until no request lives and none is left."""
        pending = self._pending
        while found := pending.listeners.wait(None, pending.take_next, None):
            yield from found

    async def __aiter__(self) -> AsyncIterator[ServedResult]:
        """Yield results as they end, until no request lives and none is left."""
        pending = self._pending
        while found := await pending.listeners.await_(None, pending.take_next, None):
            for result in found:
                yield result

    def wait(self, id: ServedId, timeout_s: float | None = None) -> ServedResult:
        """Wait for one request and return how it ended; no other caller gets its result.

        Raises:
            DeadlineError: if it has not ended after ``timeout_s`` seconds; it runs on.
            SchedulingError: if its result was handed out or dropped, another caller waits for it,
                or there never was such a request.
            ConfigError: on a bad timeout.
            ForkedError: in a forked child.
        """
        pending = self._pending
        with pending.claimed(id) as served:
            pending.listeners.wait(served.id, lambda: served.result, timeout_s)
        return pending.collect(served)

    async def await_result(self, id: ServedId, timeout_s: float | None = None) -> ServedResult:
        """Wait for one request without blocking the loop; see ``wait``."""
        pending = self._pending
        with pending.claimed(id) as served:
            await pending.listeners.await_(served.id, lambda: served.result, timeout_s)
        return pending.collect(served)

    def result(self, id: ServedId, timeout_s: float | None = None) -> Any:
        """Wait for one request and return its output; raise what ended it.

        Raises:
            Exception: what ended the request, the original object; else as ``wait``.
        """
        return self.wait(id, timeout_s).unwrap()

    async def aresult(self, id: ServedId, timeout_s: float | None = None) -> Any:
        """Wait for one request's output without blocking the loop; see ``result``."""
        return (await self.await_result(id, timeout_s)).unwrap()

    def cancel(self, id: ServedId) -> bool:
        """End a request with RequestCancelledError; tell whether it was live.

        Its result is handed out like any other.
        """
        return self._pending.cancel(id)

    def drain(self, timeout_s: float | None = None) -> list[ServedResult]:
        """Refuse new requests from now on, let the live ones end, and return the unfetched results.

        After ``timeout_s`` seconds it returns without those that have not ended; they run on.
        """
        pending = self._pending
        pending.shut("the server takes no further request: it was drained")
        pending.listeners.wait(None, pending.is_empty, timeout_s)
        return pending.take()

    async def adrain(self, timeout_s: float | None = None) -> list[ServedResult]:
        """Refuse new requests and let the live ones end; see ``drain``."""
        pending = self._pending
        pending.shut("the server takes no further request: it was drained")
        await pending.listeners.await_(None, pending.is_empty, timeout_s)
        return pending.take()

    def close(self) -> None:
        """Refuse new requests and end the live ones with ClosedError, within ``shutdown_s``.

        Results can still be fetched. A forked child has nothing to close.
        """
        if self._accelerator.forked:
            return
        self._results.close(cancel=not self._is_owner)
        if self._is_owner:
            self._accelerator.close()
        shutdown_s = self._accelerator.options.shutdown_s
        self._results.listeners.wait(None, self._results.is_empty, shutdown_s)

    def stats(self) -> ServerStats:
        """Return counts, latencies by workflow and the accelerator's own metrics.

        Raises:
            ForkedError: in a forked child.
        """
        pending = self._pending
        # Read first: it waits for the scheduler, which may have ends of requests to tell.
        accelerator = self._accelerator.metrics.snapshot()
        return pending.stats(accelerator)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _pending(self) -> PendingResults:
        """Return the results. Raises ForkedError in a forked child."""
        if self._accelerator.forked:
            raise ForkedError(
                "a server made before fork() was used in the child",
                hint="make the Server in the child",
            )
        return self._results
