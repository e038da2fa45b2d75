"""A language model of this process as an owned engine."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    KINDS,
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    Handle,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.engines.llm.local.batching.prefix import PrefixCache
from rag_accel.engines.llm.local.batching.rows import Runner
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.prefilled import PrefilledPrompts
from rag_accel.engines.llm.local.reuse.chunk_store import chunk_store
from rag_accel.engines.llm.local.reuse.prefetcher import Prefetcher
from rag_accel.engines.llm.local.reuse.prompt_spans import Recompute
from rag_accel.engines.llm.local.reuse.spans import SpanReuse
from rag_accel.engines.llm.local.running import RunningWorks
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.stopping import end_tokens
from rag_accel.engines.llm.local.text.tokens import EncodingInput, TokenInput, without_texts
from rag_accel.engines.llm.local.work import WorkReader
from rag_accel.engines.torch_threads import thread_count
from rag_accel.kv.store import ChunkStore
from rag_accel.system.processor import usable_cores

_WHERE = "local language model"
#: Tokens that every vocabulary has. None ends the completion, so that a token is decoded, too.
_SAMPLES = ((PrimitiveKind.DECODING, TokenInput(ids=(0,) * 8, ends=frozenset(), most=2)),)
_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.prefills) | {PrimitiveKind.DECODING}


class LocalLLMEngine(OwnEngine):
    """An engine for DECODING and PREFILLING on a model that runs here.

    Works are batched continuously, with chunked prefill between decoded tokens. The longest prefix
    that an earlier prompt of the same namespace has in the pool is copied. A PREFILLING kind
    computes a prompt and ends with a handle; its state is evicted only if a sequence needs the
    room, and is then computed again. Of a prompt whose retrieved texts are reused it computes the
    part before the first of them.

    With a folder of retrieved texts' states, those of hinted texts are prefetched into memory.

    Final value: ``GenerationOutput``, with ``use``, and for a ``TokenInput`` a ``TokenOutput``;
    where ``stream`` is set, text comes as ``partial`` first. Without options, the most probable
    token is chosen. ``max_tokens`` beyond the model's context end there. Work ends in ``error``
    where its kind, payload, options or handle are not for this engine, where its prompt has no room
    in the context or the pool, or where its logits are not finite; other work is not touched.

    Args:
        runner: runs rows through the model; its pool is this engine's alone.
        tokenizer: the model's, of transformers; copied, since settings such as truncation change
            with each call of any thread. None where all prompts are token ids.
        eos: tokens that end a completion, such as ``end_tokens`` finds in a model's configurations;
            the tokenizer's own by default.
        template: a chat template in place of the tokenizer's.
        split_special_tokens: whether names of special tokens in messages are read as text.
        options: bounds.
        sampling: options of the model's own, such as ``repetition_penalty``, where a request does
            not name them.
        clock: measures ``StepBudget.time_s``.
        check: raises the error that refuses new work, such as that the model has changed.
        kept: the store of retrieved texts' states and the model's identity in its keys, in place of
            those of the options.

    Raises ConfigError where there is no chat template.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any,
        *,
        eos: Collection[int] | None = None,
        template: str | None = None,
        split_special_tokens: bool = False,
        options: LocalOptions | None = None,
        sampling: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        kept: tuple[ChunkStore, str] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._options = options or LocalOptions()
        tokenizer = copy.deepcopy(tokenizer)
        ends = end_tokens(tokenizer) if eos is None else frozenset(eos)
        prompting = None
        if tokenizer is not None:
            prompting = Prompting(
                tokenizer, template=template, split_special_tokens=split_special_tokens
            )
        self._reader = WorkReader(runner, tokenizer, prompting, ends, self._options, sampling or {})
        self._clock = clock or MonotonicClock()
        self._check = check
        self._pool = runner.pool
        self._prefixes = PrefixCache(runner.pool, self._options.prefix_lanes)
        store, identity = kept or chunk_store(runner, self._options)
        self._reuse = SpanReuse(
            runner.pool,
            store,
            identity,
            self._options,
            Recompute.of(self._options, runner),
            self._clock,
        )
        self._hints = None
        if prompting is not None and self._options.reads_ahead:
            # A tokenizer of its own: the store's thread uses it.
            apart = Prompting(copy.deepcopy(tokenizer), template=template)
            self._hints = Prefetcher(
                store,
                identity,
                apart.alone,
                self._options.least_chunk_tokens,
                self._options.kv_recipe == "neighbours",
            )
        threads = _threads(self._options, runner.pool.on_cpu)
        super().__init__(_profile(self._options, threads, hinted=self._hints is not None), _WHERE)
        self._ready: list[EngineOutput] = []
        self._prefilled = PrefilledPrompts(self._prefixes)
        self._running = RunningWorks(
            runner,
            self._options,
            self._reuse,
            self._prefixes,
            self._prefilled,
            self._clock,
            self._report,
        )
        self._interrupted = threading.Event()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of keys and values of lanes and stored texts."""
        return self._pool.held_bytes + self._reuse.held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of retrieved texts, see ``CHUNK_COUNTS``; {} without reuse."""
        return {} if self._options.kv_reuse == "exact" else self._reuse.counts

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._require_open()
        for request in work:
            try:
                self._accept(request)
            except Exception as error:  # whatever is wrong with one item stays with it
                self._ready.append(EngineOutput(request.id, "error", error=error))

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Run forwards until there is something to report, the time is over or an interrupt.

        Where forwards were run and nothing has come of them yet, progress of a work is reported.
        """
        if self._ready:
            outputs, self._ready = self._ready, []
            return outputs
        outputs: list[EngineOutput] = []
        now = self._clock.now()
        ends_at = math.inf if budget.time_s is None else now + budget.time_s
        has_run = False
        with thread_count(min(budget.threads, self._profile.max_threads)):
            while len(self._running) and not outputs and not self._ready:
                self._running.take_loaded()
                if self._running.has_rows:
                    outputs = self._running.forward()
                    has_run = True
                now = self._clock.now()
                if now >= ends_at or self._interrupted.is_set():
                    break
        # Not before the step: an interrupt that came just then is meant for it.
        self._interrupted.clear()
        outputs, self._ready = [*outputs, *self._ready], []
        if has_run and len(self._running) and not outputs:
            outputs.append(EngineOutput(next(iter(self._running)), "progress"))
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        gone = frozenset(ids)
        unsaid = [output for output in self._ready if output.id in gone]
        self._ready = [output for output in self._ready if output.id not in gone]
        self.release([output.handle for output in unsaid if output.handle is not None])
        self._running.cancel(gone)

    def release(self, handles: Sequence[Handle]) -> None:
        """Forget prefilled prompts; their lanes may be evicted like those of ended sequences."""
        self._prefilled.release(handles)

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        """Prefetch the states of texts behind the heads of late prompts."""
        if self._hints is not None:
            self._hints.take(documents, namespace)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove the states of texts of a namespace, in memory and in the folder."""
        if self._options.kv_reuse != "exact":
            self._reuse.forget_texts(documents, namespace)

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        self.cancel([*self._running, *(output.id for output in self._ready)])
        self._prefilled.clear()
        self._prefixes.clear()
        self._reuse.close()
        self._closed = True

    def _accept(self, request: EngineRequest) -> None:
        if self._check is not None:
            self._check()
        payload = self._checked_payload(request, GenerationInput, self._running)
        handle = request.handle
        if handle is not None and not self._prefilled.has(handle, request.namespace):
            valid = "a handle of this namespace, not yet released"
            raise self._refusal("unknown handle", handle, valid)
        if isinstance(payload, EncodingInput):
            work = self._reader.encoding(request, payload)
        elif KINDS[request.kind].prefills:
            pays = partial(self._running.reuse_pays, namespace=request.namespace, is_asked=False)
            work = self._reader.prompt(request, payload, pays)
        else:
            work = self._reader.generation(request, payload)
            if work.segments is not None and not self._running.reuse_pays(
                work.segments, request.namespace, is_asked=True
            ):
                if work.segments.paths is not None:
                    work.segments = work.segments.without_chunks()
                else:
                    work = self._reader.generation(request, without_texts(payload))
        if work is None:
            handle = self._prefilled.add(request.namespace)
            self._ready.append(EngineOutput(request.id, "final", handle=handle))
            return
        if request.handle is not None:
            work.sequence.early = self._prefilled.take_early(request.handle)
        if work.segments is not None and self._hints is not None:
            self._hints.heads.note(request.namespace, work.segments.head)
        self._running.add(work)

    def _report(self, output: EngineOutput) -> None:
        self._ready.append(output)


def _threads(options: LocalOptions, on_cpu: bool) -> int:
    """Return the most threads of a step: by default all cores, and none of them off the CPU."""
    if options.max_threads is not None:
        return options.max_threads
    return usable_cores() if on_cpu else 0


def _profile(options: LocalOptions, threads: int, *, hinted: bool) -> EngineProfile:
    capabilities = {Capability.STREAM, Capability.ENDS_IN_TIME, Capability.SHARES_CORES}
    return EngineProfile(
        kinds=_KINDS,
        max_batch=options.max_requests,
        max_threads=threads,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({*capabilities, Capability.HINT} if hinted else capabilities),
        samples=_SAMPLES,
    )
