"""The composition root: the scheduler and the engines together."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final, Unpack

from rag_accel.accelerator.engine_table import EngineTable
from rag_accel.accelerator.listed_members import is_auto, pooled
from rag_accel.accelerator.local_llms import LocalLLMs, as_local_llm
from rag_accel.accelerator.observer import SchedulerObserver
from rag_accel.accelerator.preparation import PREPARE_S, EnginesOf, prepare_engines
from rag_accel.accelerator.program_beginnings import ProgramBeginnings
from rag_accel.accelerator.program_embedders import ListedEmbedders, names_of
from rag_accel.accelerator.program_requests import ProgramRequests, live
from rag_accel.accelerator.span_export import SpanExport
from rag_accel.config import OptionArguments, Options
from rag_accel.engine_api import (
    ROLES,
    BorrowedEngine,
    Engine,
    EngineProfile,
    Health,
    PrimitiveKind,
    worst_state,
)
from rag_accel.engines.embedding.hosted_texts import HostedTexts
from rag_accel.engines.http.shared_answers import SharedAnswers
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.leaves.call_pool import CallPool
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.leaves.leaves import Leaves
from rag_accel.passes.early_prefill import EARLY_PREFILL
from rag_accel.passes.explanation import PlanStage, explain_graph
from rag_accel.passes.manager import passes_estimated, passes_named
from rag_accel.profile.profile import Profile, profile_of
from rag_accel.requests.engines import NamedEngine, is_engine, owned, role_engine
from rag_accel.requests.execution import CompiledGraph, CountedResult, Execution, Graph, RunHandle
from rag_accel.requests.graph_checks import with_asked_kinds
from rag_accel.requests.kinds import check_output
from rag_accel.requests.plan import USER_CODE
from rag_accel.requests.request import GraphRequest
from rag_accel.requests.streams import LIST_ITEMS
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineName
from rag_accel.scheduler.state import CoreOptions
from rag_accel.system.forks import forks
from rag_accel.system.processor import usable_cores
from rag_accel.telemetry import Metrics, Tracer
from rag_accel.telemetry.span_attributes import attributes_of

#: stages counted by name; further ones are counted together
MAX_STAGES: Final = 1024
OTHER_STAGES: Final = "(other stages)"


class StageCounters:
    """The counters by stage or program among an accelerator's metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: set[str] = set()

    def count(self, what: str, stage: str, amount: int = 1) -> None:
        """Count something that happened to a stage."""
        if stage not in self._known:
            if len(self._known) >= MAX_STAGES:
                stage = OTHER_STAGES
            self._known.add(stage)
        self._metrics.counter(what, stage).add(amount)


def _count_failed_hint(metrics: Metrics, engine: EngineName | None) -> None:
    metrics.counter("hints_failed", engine or "documents").add()


class Accelerator(ProgramRequests):
    """A scheduler of the work of many requests over shared engines.

    Args:
        llm, embedder, index, reranker, graph: engines of the stages that name no other; each an
            ``Engine``, a ``DocumentIndex``, a ``MemoryGraph`` or a callable, see
            ``requests.engines``; ``llm`` may be a ``LocalLLM``, or a model's folder or name on the
            hub; ``embedder`` may list several engines of one model, each on a device of its own:
            engines, models, devices such as ``"cuda:0"``, or members; ``"auto"`` lists the devices
            found here. What a list does for models of programs: ``program_embedders.py``.
        engines: more of them, by the names that stages use; see ``add_engine``.
        options: an ``Options``; or give single options as keyword arguments.

    Raises:
        ConfigError: on an unknown option, a bad value, or something that is no engine.
    """

    def __init__(
        self,
        *,
        llm: Any = None,
        embedder: Any = None,
        index: Any = None,
        reranker: Any = None,
        graph: Any = None,
        engines: Mapping[str, Any] | None = None,
        options: Options | None = None,
        **arguments: Unpack[OptionArguments],
    ) -> None:
        self.options = options.merged(**arguments) if options else Options.load(**arguments)
        self.cores = self.options.threads or usable_cores()
        self._metrics = Metrics()
        self.tracer = Tracer(self.options.trace_events)
        self._driver = Driver(
            _core_options(self.options, self.cores),
            check=check_output,
            observer=SchedulerObserver(self._metrics, self.tracer),
            # Not a method: the driver must not keep an accelerator that nothing else refers to.
            hint_failed=partial(_count_failed_hint, self._metrics),
        )
        self.leaves = Leaves(self._driver, self.options)
        self.calls = CallPool(self.options.call_threads)
        self._lock = threading.Lock()
        self._table = EngineTable(self._driver)
        self._spans = self._span_export()
        self.local_llms = LocalLLMs(self.options)
        self._listed = ListedEmbedders(self.options, self.cores, self._table)
        self.embedders = self._listed.programs
        self.shared_answers = SharedAnswers()
        self.hosted_texts = HostedTexts(
            int(self.options.hosted_cache_mb * 2**20), self.options.hosted_cache_s
        )
        self._bypassed: Counter[tuple[str, str]] = Counter()
        self._bound: dict[str, NamedEngine] = {}
        #: whether ``embedder`` was given as a list
        self.lists_embedders = False
        self._driver.add_borrowed(
            BorrowedEngine(USER_CODE, frozenset({PrimitiveKind.FUNCTION, PrimitiveKind.CONDITION}))
        )
        items = BorrowedEngine(LIST_ITEMS, frozenset({PrimitiveKind.PARTIAL_DECODING}))
        self._driver.add_borrowed(items)
        count = StageCounters(self._metrics).count
        self._execution = Execution(
            *(self._driver, self.calls, self.options, self._engines_for, count),
            identify=self._identify,
            spans=None if self._spans is None else self._spans.request,
        )
        passes = passes_named(self.options.passes)
        self._beginnings = ProgramBeginnings(
            self._driver,
            self.options.namespace,
            passes is None or EARLY_PREFILL in passes,
            self._table.profiles,
            count,
        )
        self._forks = forks.number
        # The driver's thread keeps the driver alive, not this object: nobody else would stop it.
        weakref.finalize(self, self._driver.close, 0.0).atexit = False
        given = {
            "llm": llm,
            "embedder": embedder,
            "index": index,
            "reranker": reranker,
            "graph": graph,
        }
        try:
            for name, engine in {**given, **(engines or {})}.items():
                if engine is not None:
                    self.add_engine(name, engine)
        except BaseException:
            self.close()
            raise
        live.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # What arrives elsewhere has the options, and threads and engines of its own.
        return (_with_options, (self.options,))

    def __copy__(self) -> Accelerator:
        return self

    def __deepcopy__(self, memo: object) -> Accelerator:
        return self

    def add_engine(self, name: str, engine: Any, kind: PrimitiveKind | None = None) -> None:
        """Let stages use an engine under this name.

        Args:
            name: what stages call it.
            engine: an ``Engine``, a ``DocumentIndex``, a ``LocalLLM`` or a callable; a list of
                engines that embed, models, devices or members, the most preferred first, is one
                embedder on several devices; one of language models, indexes or rerankers that give
                equal results is one ``EnginePool``.
            kind: what a callable does; known from the name for the standard ones. Others do by
                default what the stages of a graph that name them ask for, one kind in a graph.

        Raises:
            ConfigError: if the name is taken, or this cannot serve as an engine.
        """
        self._table.named[name] = attributes_of(engine)
        if name == "embedder":
            self.lists_embedders = isinstance(engine, list | tuple) or is_auto(engine)
        pool = pooled(name, engine, self._llm_engine, self.options.step_timeout_s)
        engine = pool if pool is not None else self._listed.engine(name, engine)
        if engine is None:  # one that is made for the first graph that names it
            return
        llm = as_local_llm(name, engine)
        if llm is not None:
            local = self.local_llms.add(llm)
            make = partial(local.make, self.options)
            joined, profile = self._table.add(local, name, make)
            self._keep_engine(name, NamedEngine(joined, profile, describe=local.describe_parts))
            return
        taken = role_engine(name, engine)
        if is_engine(taken):
            joined = self._driver.add_engine(name, taken)
            self._table.named[name] = {**attributes_of(taken), **self._table.named[name]}
            if PrimitiveKind.EXPANDING in taken.profile.kinds:
                self._table.note(engine, joined, taken.profile)
            self._keep_engine(name, owned(joined, taken))
            self._listed.joined(name, joined, taken)
            return
        known = kind or ROLES.get(name)
        borrowed = BorrowedEngine(name, frozenset({known or PrimitiveKind.DECODING}))
        joined = self._driver.add_borrowed(borrowed)
        self._keep_engine(name, NamedEngine(joined, borrowed, taken, is_open=known is None))

    def _span_export(self) -> SpanExport | None:
        if self.options.telemetry == "off":
            return None
        has_steps = self.options.telemetry == "spans+steps"
        export = SpanExport(self.tracer, self._driver, has_steps, self._table.attributes_of)
        self._driver.check = export.noting(check_output)
        weakref.finalize(self, export.stop).atexit = False
        return export

    def _llm_engine(self, llm: Any) -> Engine:
        """Return an engine of a language model of its own, for a pool."""
        return self.local_llms.add(llm).make(self.options)

    @property
    def options_of_engines(self) -> frozenset[str]:
        """Return the options that engines given to this accelerator read."""
        reads = {"embedding_runtime"} if "embedder" in self._bound else set[str]()
        if self.local_llms.are_given:
            reads |= {"kv_reuse", "kv_folder"}
        return frozenset(reads)

    def _engines_for(self, graph: FrozenRAGraph) -> Mapping[str, NamedEngine]:
        """Return the engines that a graph may name; those that wait for it are made."""
        return self._engines_named(names_of(graph))

    def _engines_named(self, names: Set[str]) -> Mapping[str, NamedEngine]:
        for name, engine in self._listed.wanted(names):
            self._keep_engine(name, owned(self._driver.add_engine(name, engine), engine))
        return self._bound

    def named_engine(self, name: str) -> NamedEngine | None:
        """Return the engine that stages use by this name, made on first use; None without one."""
        return self._engines_named({name}).get(name)

    def _identify(self, run: GraphRequest, program: str) -> RequestIdentity:
        """Return the identity of what the program of a graph's request calls."""
        return RequestIdentity(self, run.id, run.arrived_at, run.deadline, program)

    def _keep_engine(self, name: str, engine: NamedEngine) -> None:
        # Always another mapping: what was compiled for the one before is compiled again.
        with self._lock:
            self._bound = {**self._bound, name: engine}

    def compile(self, graph: Graph) -> CompiledGraph:
        """Verify a graph and lower it for the engines here, to be run many times.

        Raises:
            GraphError: if the graph breaks a rule, or these engines cannot run it.
        """
        compiled = self._of(graph)
        for is_alone in (False, True):
            self._execution.plan(compiled.graph, is_alone=is_alone).start()
        return compiled

    def _of(self, graph: Graph) -> CompiledGraph:
        """Return a graph that is compiled on its first run."""
        return CompiledGraph(self._execution, graph.freeze())

    def prepare(self, graph: Graph, *, timeout_s: float = PREPARE_S) -> bool:
        """Load, compile, prove and place what a graph computes with, before its first request.

        Each engine that computes here runs a small sample, as a request would be run. No server is
        asked and no code of the user's is called. Meanwhile ``health`` says ``preparing``.

        Args:
            graph: compiled, too.
            timeout_s: the most seconds to wait.

        Returns:
            Whether all is ready; what is not by then is finished in the background, or by requests.

        Raises:
            GraphError: if the graph breaks a rule, or these engines cannot run it.
            Exception: what an engine raises for its sample.
        """
        names = names_of(graph.freeze())
        self._execution.plan(graph)

        def engines() -> Iterator[EngineName]:
            bound = self._engines_named(names)
            return (engine.engine for name, engine in bound.items() if name in names)

        return self.prepare_engines(engines, timeout_s)

    def prepare_engines(self, engines: EnginesOf, timeout_s: float) -> bool:
        """Do for engines what ``prepare`` does for those of a graph.

        Args:
            engines: returns their names, and begins to place what they run.
            timeout_s: the most seconds to wait.
        """
        with self.embedders.preparations.begun():
            return prepare_engines(self, engines, self._profiles, timeout_s)

    def _profiles(self) -> dict[EngineName, EngineProfile]:
        named = {
            engine.engine: engine.profile
            for engine in self._bound.values()
            if isinstance(engine.profile, EngineProfile)
        }
        return {**named, **self._table.profiles()}

    def run(
        self,
        graph: Graph,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run a graph and return its result: the value before END, or ``outputs`` as a dict.

        Functions and borrowed engines run in this thread as far as it is free, else in ours.

        Raises:
            GraphError: if the graph breaks a rule, or the inputs do not fit.
            DeadlineError: if ``deadline_s`` passes first.
            Exception: whatever a stage raised, the same object.
        """
        return self._of(graph).run(outputs=outputs, deadline_s=deadline_s, **inputs)

    async def arun(
        self,
        graph: Graph,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run a graph without blocking the loop; async stages run on it. Raises as ``run``."""
        return await self._of(graph).arun(outputs=outputs, deadline_s=deadline_s, **inputs)

    async def arun_counted(
        self, graph: Graph, inputs: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> CountedResult:
        """Run a graph as ``arun``; return its result with its retries and fallbacks by stage."""
        return await self._of(graph).arun_counted(inputs, deadline_s=deadline_s)

    def stream(
        self, graph: Graph, /, *, deadline_s: float | None = None, **inputs: Any
    ) -> Iterator[str]:
        """Yield the text of the graph's last generation as it is made. Raises as ``run``."""
        return self._of(graph).stream(deadline_s=deadline_s, **inputs)

    def astream(
        self, graph: Graph, /, *, deadline_s: float | None = None, **inputs: Any
    ) -> AsyncIterator[str]:
        """Yield the text of the graph's last generation on this loop. Raises as ``run``."""
        return self._of(graph).astream(deadline_s=deadline_s, **inputs)

    def submit(
        self,
        graph: Graph,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> RunHandle:
        """Start a graph and return a handle at once.

        Raises:
            BusyError: if ``max_requests`` requests are live.
            GraphError: if the graph breaks a rule, or the inputs do not fit.
        """
        return self._of(graph).submit(outputs=outputs, deadline_s=deadline_s, **inputs)

    def explain(self, graph: Graph, stage: PlanStage = "ragraph") -> str:
        """Return a graph as text at a stage of its lowering, with how each engine is driven.

        ``e-graph`` also says what each static pass changed where the request is alone, and about
        what passes save. A notebook shows the text as a table.
        """
        frozen = graph.freeze()
        engines = with_asked_kinds(frozen, self._engines_for(frozen))
        profiles = {name: bound.profile for name, bound in engines.items()}
        parts = {name: bound.describe() for name, bound in engines.items() if bound.describe}
        passes = self.options.passes
        on, estimated = passes_named(passes), passes_estimated(passes)
        return explain_graph(graph, profiles, stage, on, parts, estimated)

    def own(
        self,
        obj: Any,
        name: str,
        make: Callable[[], Engine],
        variant: str = "",
        holder: Any = None,
    ) -> EngineName:
        """Return the owned engine that runs ``obj``, made on first use.

        One object is one engine, unless it is used under different settings (``variant``).

        Args:
            obj: what the engine runs; the engine keeps it alive.
            name: what its engine is called, before a number.
            make: makes the engine.
            variant: the settings.
            holder: whose use this is, and which must not be kept alive by the engine. When all
                holders of an engine are gone, so is the engine. Without one it stays.
        """
        return self._table.own(obj, name, make, variant, holder)

    def is_held(self, obj: Any, holder: Any, variant: str = "") -> bool:
        """Tell whether ``own`` for this holder returns at once: its engine lives as long as it."""
        return self._table.is_held(obj, variant, holder)

    def engine_of(self, obj: Any, variant: str = "") -> EngineName | None:
        """Return the owned engine that runs ``obj``; None before its first use."""
        return self._table.engine_of(obj, variant)

    def borrow(
        self, name: str, kind: PrimitiveKind, max_concurrency: int | None = None
    ) -> EngineName:
        """Return the borrowed engine of this name, joined on first use."""
        return self._table.borrow(name, kind, max_concurrency)

    @property
    def takes_hints(self) -> bool:
        """Tell whether an engine here reads ahead for documents that a search has found."""
        return bool(self._driver.hinted.engines)

    def hint(self, texts: Iterable[str]) -> None:
        """Tell engines of texts likely to stand in a prompt soon; from any thread, never raises."""
        self._driver.hinted.send(texts, self.options.namespace)

    @property
    def keeps_texts(self) -> bool:
        """Tell whether an engine here keeps what it has computed of documents."""
        return self._driver.hinted.keeps_texts

    def forget_texts(self, texts: Iterable[str]) -> None:
        """Have engines remove what they keep of documents of this namespace; from any thread.

        Cached vectors of embeddings on servers go, too, of exactly these texts.

        Stores of rag_accel do it for what is deleted from them. Texts are compared as they stand
        in prompts, and with each of their paragraphs, lines and sentences. It happens soon;
        a prompt under way with such a text ends as it began.
        """
        forgotten = list(texts)
        self._driver.hinted.forget(forgotten, self.options.namespace)
        self.hosted_texts.forget(forgotten)

    def count_bypass(self, where: str, reason: str) -> None:
        """Count a leaf that ran without acceleration because of an internal error."""
        self._metrics.counter("bypassed", where, reason).add()
        with self._lock:
            self._bypassed[where, reason] += 1

    @property
    def metrics(self) -> Metrics:
        """Return the counters; what this thread has done before is in them."""
        if not self.forked:
            self._driver.ask(lambda: None)
        return self._metrics

    def profile(self, graph: Graph | None = None) -> Profile:
        """Return where the time of what ran went, as far as ``trace_events`` are kept.

        Args:
            graph: one that was run: also estimate, by playing its requests again without each
                pass, how many milliseconds the passes that changed it save a request.

        Raises:
            ConfigError: if the trace is off, or no request that is done is in it, or none of this
                graph.
        """
        if not self.forked:
            self._driver.ask(lambda: None)
        found = profile_of(self.tracer)
        if graph is None:
            return found
        return replace(found, savings=self._execution.plan(graph).savings(found.recording))

    def health(self) -> Health:
        """Return whether requests can be taken, with each owned engine and its members as parts.

        Made for a readiness probe: it computes nothing and asks no server.

        Raises:
            ForkedError: in a forked child.
        """
        if self.closed:
            return Health("accelerator", "lost", "it is closed")
        engines = self._driver.health()
        state = worst_state(engines)
        if state == "ready" and self.embedders.preparations.are_running:
            return Health("accelerator", "preparing", "models are loaded and compiled", engines)
        down = ", ".join(engine.name for engine in engines if not engine.is_ready)
        return Health("accelerator", state, down and f"not ready: {down}", engines)

    def queues(self) -> dict[str, tuple[int, int]]:
        """Return of each engine how many works wait for it, and how many it has.

        Raises:
            ForkedError: in a forked child.
        """
        return {} if self.closed else self._driver.queues()

    @property
    def bypassed(self) -> dict[tuple[str, str], int]:
        """Return how many leaves ran without acceleration, by place and reason."""
        with self._lock:
            return dict(self._bypassed)

    @property
    def forked(self) -> bool:
        """Tell whether this process is a child forked after this was made: its threads are gone."""
        return forks.number != self._forks

    @property
    def closed(self) -> bool:
        """Tell whether ``close`` was called."""
        return self._driver.closed

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing lives here: no request, no running work, no waiting caller.

        Work that an engine could not cancel counts until its step returns.

        Raises:
            ForkedError: in a forked child.
        """
        return self._driver.is_idle

    def close(self) -> None:
        """End what still runs with ClosedError and stop all threads within ``shutdown_s``.

        A forked child has nothing to close: all of it is the parent's.
        """
        if self.forked:
            return
        self.embedders.stop()
        self._driver.close(self.options.shutdown_s)
        self.embedders.join(self.options.shutdown_s)
        self.calls.close()
        self.tracer.close()

    def __enter__(self) -> Accelerator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _with_options(options: Options) -> Accelerator:
    return Accelerator(options=options)


def _core_options(options: Options, cores: int) -> CoreOptions:
    passes = passes_named(options.passes)
    return CoreOptions(
        max_requests=options.max_requests,
        max_batch=options.max_batch,
        batch_wait_s=options.batch_wait_ms / 1000,
        step_timeout_s=options.step_timeout_s,
        cores=cores,
        split_nodes=passes is None or "split_nodes" in passes,
    )
