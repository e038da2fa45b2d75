"""A language model of this process as an owned engine."""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    KINDS,
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationInput,
    Handle,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.llm.local.batching.forward_cost import ForwardCost
from rag_accel.engines.llm.local.batching.prefix import PrefixCache
from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.batching.schedule import Planned, Schedule
from rag_accel.engines.llm.local.batching.sequence import Lane, TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.reuse.chunk_store import chunk_store
from rag_accel.engines.llm.local.reuse.chunks import ChunkReuse, Recompute
from rag_accel.engines.llm.local.reuse.prefetcher import Prefetcher
from rag_accel.engines.llm.local.text.prompting import Prompting
from rag_accel.engines.llm.local.text.sampling import choose
from rag_accel.engines.llm.local.text.stopping import end_tokens
from rag_accel.engines.llm.local.text.tokens import EncodingInput, without_texts
from rag_accel.engines.llm.local.work import LocalWork, WorkReader
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ClosedError, EngineError
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.kv.store import ChunkStore
from rag_accel.system.processor import usable_cores

#: Seconds of waiting for kept texts after which a step looks for an interrupt and at its time.
_LOOK_S = 0.02
_WHERE = "local language model"
_KINDS = frozenset(kind for kind, spec in KINDS.items() if spec.prefills) | {PrimitiveKind.DECODING}


@dataclass(slots=True)
class _KeptPrompt:
    namespace: str
    lane: Lane | None
    #: places that were computed for the work that resumes from it first
    early: range = range(0)

    def take_early(self) -> range:
        """Return them; for whatever resumes from it later they are what an earlier call left."""
        early, self.early = self.early, range(0)
        return early


class LocalLLMEngine(EngineBase):
    """An engine for DECODING and PREFILLING on a model that runs here.

    Works are batched continuously and prompts computed in pieces between decoded tokens. What an
    earlier prompt of the same namespace has computed of a prompt's beginning is copied. A
    PREFILLING kind computes a prompt and ends with a handle; its state is given up only if a
    sequence needs the room, and is then computed again. Of a prompt whose retrieved texts are
    reused it computes what stands before the first of them.

    With a folder of retrieved texts' states, those of texts that are hinted at are read into memory
    before a prompt asks for them.

    Final value: ``GenerationOutput``, with ``use``, and for a ``TokenInput`` a ``TokenOutput``;
    where ``stream`` is set, text comes as ``partial`` first. Without options, the most probable
    token is chosen. ``max_tokens`` beyond the model's context end there. Work ends in ``error``
    where its kind, payload, options or handle are not for this engine, where its prompt has no room
    in the context or the pool, or where its logits are not finite; other work is not touched.

    Args:
        runner: runs rows through the model; its pool is this engine's alone.
        tokenizer: the model's, of transformers. What works is a copy: the settings of one, such as
            truncation, change with each call of any thread. None where all prompts are token ids.
        eos: tokens that end a completion, such as ``end_tokens`` finds in a model's configurations;
            the tokenizer's own by default.
        template: a chat template in place of the tokenizer's.
        split_special_tokens: whether names of special tokens in messages are read as text.
        options: bounds.
        sampling: options of the model's own, such as ``repetition_penalty``, where a request does
            not name them.
        clock: measures ``StepBudget.time_s``.
        check: raises what new work is refused with, such as that the model has changed meanwhile.
        kept: where the state of retrieved texts is kept, and what identifies the model there, in
            place of what the options say.

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
        self._runner = runner
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
        self._prefixes = PrefixCache(runner.pool, self._options.prefix_lanes)
        store, identity = kept or chunk_store(runner, self._options)
        self._chunks = ChunkReuse(
            runner.pool,
            store,
            model=identity,
            recompute=_recompute(self._options, runner.layers),
            clock=self._clock,
        )
        self._hints = None
        if prompting is not None and self._options.reads_ahead:
            # Of a tokenizer of its own: the store's thread uses it beside this engine's.
            apart = Prompting(copy.deepcopy(tokenizer), template=template)
            self._hints = Prefetcher(store, identity, apart.alone, self._options.least_chunk_tokens)
        self._profile = _profile(self._options, hinted=self._hints is not None)
        self._schedule = Schedule(self._admit)
        self._forward_cost = ForwardCost(self._options.step_tokens, self._options.stall_s)
        self._works: dict[WorkId, LocalWork] = {}
        self._running: dict[TokenSequence, LocalWork] = {}
        self._ready: list[EngineOutput] = []
        self._prefilled: dict[Handle, _KeptPrompt] = {}
        self._handle_numbers = itertools.count(1)
        self._interrupted = threading.Event()
        self._closed = False

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    @property
    def held_bytes(self) -> int:
        """Return the bytes of keys and values that are held, with those kept for later prompts."""
        return self._runner.pool.held_bytes + self._chunks.held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what was counted of retrieved texts, see ``CHUNK_COUNTS``; {} if none is kept."""
        return {} if self._options.kv_reuse == "exact" else self._chunks.counts

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Read prompts and queue them."""
        if self._closed:
            raise ClosedError("the engine is closed", where=_WHERE)
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
            while self._works and not outputs and not self._ready:
                self._take_looked()
                if len(self._schedule):
                    outputs = self._forward(self._forward_cost.rows(decodes=self._schedule.decodes))
                    has_run = True
                now = self._clock.now()
                if now >= ends_at or self._interrupted.is_set():
                    break
        # Not before the step: an interrupt that came just then is meant for it.
        self._interrupted.clear()
        outputs, self._ready = [*outputs, *self._ready], []
        if has_run and self._works and not outputs:
            outputs.append(EngineOutput(next(iter(self._works)), "progress"))
        return outputs

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work and free its room; handles stay."""
        gone = frozenset(ids)
        unsaid = [output for output in self._ready if output.id in gone]
        self._ready = [output for output in self._ready if output.id not in gone]
        self.release([output.handle for output in unsaid if output.handle is not None])
        for id in gone:
            work = self._works.get(id)
            if work is not None:
                self._forget(work)

    def release(self, handles: Sequence[Handle]) -> None:
        """Forget prefilled prompts; what they hold may go like that of any ended sequence."""
        for handle in handles:
            prefilled = self._prefilled.pop(handle, None)
            if prefilled is not None and prefilled.lane is not None:
                self._prefixes.unpin(prefilled.lane)

    def hint(self, documents: Sequence[str], namespace: str = "") -> None:
        """Begin to read what a folder keeps of texts behind the heads of late prompts."""
        if self._hints is not None:
            self._hints.take(documents, namespace)

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove what is kept of texts of a namespace, in memory and in the folder."""
        if self._options.kv_reuse != "exact":
            self._chunks.forget_texts(documents, namespace)

    def interrupt(self) -> None:
        """Make a running step return after its forward."""
        self._interrupted.set()

    def close(self) -> None:
        """Forget all work and handles and free the pool's lanes."""
        self.cancel([*self._works, *(output.id for output in self._ready)])
        self.release(list(self._prefilled))
        self._prefixes.clear()
        self._chunks.close()
        self._closed = True

    def _accept(self, request: EngineRequest) -> None:
        if self._check is not None:
            self._check()
        payload = self._checked_payload(request)
        if isinstance(payload, EncodingInput):
            work = self._reader.encoding(request, payload)
        elif KINDS[request.kind].prefills:
            work = self._reader.prompt(request, payload, self._pays)
        else:
            work = self._reader.generation(request, payload)
            if work.segments is not None and not self._pays(work.segments):
                work = self._reader.generation(request, without_texts(payload))
        if work is None:
            self._ready.append(self._end_of_prompt(request, None))
            return
        if request.handle is not None:
            work.sequence.early = self._prefilled[request.handle].take_early()
        self._works[request.id] = self._running[work.sequence] = work
        if work.segments is not None:
            if self._hints is not None:
                self._hints.heads.note(request.namespace, work.segments.head)
            neighbours = payload.neighbours if isinstance(payload, EncodingInput) else ()
            for encoding in self._chunks.begin(work.sequence, work.segments, neighbours):
                self._schedule.add(encoding)
        if self._chunks.is_ready(work.sequence):
            self._start(work.sequence)

    def _start(self, sequence: TokenSequence) -> None:
        """Queue a sequence whose texts are there; with them, work to encode texts ends."""
        work = self._running.get(sequence)
        if work is not None and isinstance(work.request.payload, EncodingInput):
            self._forget(work)
            self._ready.append(work.report("final"))
        else:
            self._schedule.add(sequence)

    def _pays(self, prompt: SegmentedPrompt) -> bool:
        """Tell whether a prompt takes less time if its texts need not be computed."""
        if self._options.reuse_always:
            return True
        whole = self._forward_cost.seconds(len(prompt.ids) - len(prompt.head))
        return sum(map(self._forward_cost.seconds, self._chunks.rows(prompt))) < whole

    def _checked_payload(self, request: EngineRequest) -> GenerationInput:
        if request.kind not in _KINDS:
            raise _refusal("kind not executed here", request.kind, ", ".join(sorted(_KINDS)))
        if not isinstance(request.payload, GenerationInput):
            found = type(request.payload).__name__
            raise _refusal("payload of a wrong type", found, "GenerationInput")
        if request.id in self._works:
            raise _refusal("id of unfinished work used again", request.id, "a fresh id")
        if request.handle is not None:
            prefilled = self._prefilled.get(request.handle)
            if prefilled is None or prefilled.namespace != request.namespace:
                valid = "a handle of this namespace, not yet released"
                raise _refusal("unknown handle", request.handle, valid)
        return request.payload

    def _admit(self, sequence: TokenSequence) -> bool:
        """Give a sequence its lane; of its prompt, the last token is always computed."""
        prompt = sequence.prompt
        most = len(prompt) - 1 if sequence.exact is None else sequence.exact
        opened = self._prefixes.open(prompt, sequence.capacity, sequence.namespace, most)
        if opened is not None:
            sequence.begin(*opened)
            self._chunks.load(sequence)
        return opened is not None

    def _take_looked(self) -> None:
        """Queue what waited for kept texts; wait for those only if there is nothing else to do."""
        if self._chunks.is_looking:
            for sequence in self._chunks.looked(0.0 if len(self._schedule) else _LOOK_S):
                self._start(sequence)

    def _forward(self, most_rows: int) -> list[EngineOutput]:
        plan = self._schedule.next(most_rows)
        if not plan:
            return self._no_room(next(iter(self._schedule)))
        logits = self._run([planned.rows for planned in plan])
        for planned in plan:
            self._advance(planned)
        asked = [self._running[planned.sequence] for planned in plan if planned.rows.asked]
        choices = choose(logits, [work.sampler for work in asked])
        self._end_encodings(plan)
        for planned in plan:
            if planned.sequence.probing is not None and not planned.sequence.pending:
                self._chunks.choose(planned.sequence)
        outputs = [self._end_prompt(work) for work in self._computed_prompts(plan)]
        for work, choice in zip(asked, choices, strict=True):
            if isinstance(choice, EngineError):
                self._forget(work)
                outputs.append(work.report("error", error=choice))
            else:
                outputs += work.take(choice)
                if work.is_complete:
                    self._end_completion(work)
        return outputs

    def _run(self, rows: list[SequenceRows]) -> Any:
        started = self._clock.now()
        logits = self._runner.run(rows)
        self._forward_cost.ran(sum(map(len, rows)), self._clock.now() - started)
        return logits

    def _advance(self, planned: Planned) -> None:
        """Count rows that were computed; a prompt's are at once there for others to begin with."""
        sequence = planned.sequence
        sequence.go_on(planned.rows.slots[-1] + 1)
        if not sequence.is_decoding and sequence.lane is not None:
            self._prefixes.grow(sequence.lane, sequence.computed_ids)

    def _computed_prompts(self, plan: Sequence[Planned]) -> Iterator[LocalWork]:
        for planned in plan:
            sequence = planned.sequence
            if sequence in self._running and not sequence.max_new and not sequence.pending:
                yield self._running[sequence]

    def _end_encodings(self, plan: Sequence[Planned]) -> None:
        """Keep what was encoded, and let the prompts begin that waited for it."""
        for planned in plan:
            sequence = planned.sequence
            if sequence.pending or not self._chunks.is_encoding(sequence):
                continue
            for ready in self._chunks.encoded(sequence):
                self._start(ready)
            self._schedule.drop(sequence)
            if sequence.lane is not None:  # its head is what the next text is encoded behind
                self._prefixes.keep(sequence.lane)
                sequence.lane = None

    def _end_prompt(self, work: LocalWork) -> EngineOutput:
        lane = work.sequence.lane
        assert lane is not None
        self._prefixes.pin(lane)
        self._keep(work, lane)
        return self._end_of_prompt(work.request, lane, work.sequence)

    def _end_of_prompt(
        self, request: EngineRequest, lane: Lane | None, sequence: TokenSequence | None = None
    ) -> EngineOutput:
        handle = Handle(f"prefill-{next(self._handle_numbers)}")
        early = range(sequence.from_prefix, len(sequence.prompt)) if sequence else range(0)
        self._prefilled[handle] = _KeptPrompt(request.namespace, lane, early)
        return EngineOutput(request.id, "final", handle=handle)

    def _end_completion(self, work: LocalWork) -> None:
        lane = work.sequence.lane
        assert lane is not None
        self._prefixes.grow(lane, work.sequence.computed_ids)
        self._keep(work, lane)

    def _keep(self, work: LocalWork, lane: Lane) -> None:
        if work.sequence.exact is None:
            work.sequence.lane = None
            self._prefixes.keep(lane)
        self._forget(work)

    def _forget(self, work: LocalWork) -> None:
        del self._works[work.request.id], self._running[work.sequence]
        for encoding in self._chunks.forget(work.sequence):
            self._leave(encoding)
        self._leave(work.sequence)

    def _leave(self, sequence: TokenSequence) -> None:
        self._schedule.drop(sequence)
        if sequence.lane is not None:
            self._prefixes.drop(sequence.lane)
            sequence.lane = None

    def _no_room(self, sequence: TokenSequence) -> list[EngineOutput]:
        encodes = self._chunks.is_encoding(sequence)
        waiting = self._chunks.readers(sequence) if encodes else [sequence]
        work_items = [self._running[one] for one in waiting]
        for work in work_items:
            self._forget(work)
        error = EngineError("the pool has no room", where=_WHERE)
        return [work.report("error", error=error) for work in work_items]


def _recompute(options: LocalOptions, layers: int) -> Recompute | None:
    if options.kv_reuse != "fused" or options.recompute_ratio == 0:
        return None
    layer = options.recompute_layer
    if layer is None:
        layer = round((layers - 1) * 2 / 3)
    return Recompute(options.recompute_ratio, min(layer, layers - 1), options.selector)


def _profile(options: LocalOptions, *, hinted: bool) -> EngineProfile:
    capabilities = {Capability.STREAM, Capability.ENDS_IN_TIME, Capability.SHARES_CORES}
    return EngineProfile(
        kinds=_KINDS,
        max_batch=options.max_requests,
        max_threads=usable_cores() if options.max_threads is None else options.max_threads,
        stepped=True,
        interruptible=True,
        capabilities=frozenset({*capabilities, Capability.HINT} if hinted else capabilities),
    )


def _refusal(what: str, found: object, valid: str) -> EngineError:
    return EngineError(what, where=_WHERE, found=found, valid=valid)
