"""Works under way of a local language model: their lanes, forwards and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import EngineOutput, PrimitiveKind, PromptUse, WorkId
from rag_accel.engines.llm.local.batching.forward_cost import ForwardCost
from rag_accel.engines.llm.local.batching.prefix import PrefixCache
from rag_accel.engines.llm.local.batching.rows import Runner, SequenceRows
from rag_accel.engines.llm.local.batching.schedule import Planned, Schedule
from rag_accel.engines.llm.local.batching.sequence import TokenSequence
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.prefilled import PrefilledPrompts
from rag_accel.engines.llm.local.reuse.spans import SpanReuse
from rag_accel.engines.llm.local.text.sampling import choose
from rag_accel.engines.llm.local.text.tokens import EncodingInput
from rag_accel.engines.llm.local.work import LocalWork
from rag_accel.errors import EngineError
from rag_accel.kv.segments import SegmentedPrompt

#: Seconds of waiting for kept texts after which a step looks for an interrupt and at its time.
_LOOK_S = 0.02


class RunningWorks:
    """The works of an engine until their end. Used by its worker only.

    Args:
        runner: runs rows through the model.
        options: bounds of forwards.
        reuse: the parts of prompts that are reused.
        prefixes: the lanes.
        prefilled: the prompts that are computed ahead.
        clock: measures forwards.
        report: takes the final outputs of works that only encode texts.
    """

    def __init__(
        self,
        runner: Runner,
        options: LocalOptions,
        reuse: SpanReuse,
        prefixes: PrefixCache,
        prefilled: PrefilledPrompts,
        clock: Clock,
        report: Callable[[EngineOutput], object],
    ) -> None:
        self._runner = runner
        self._reuse_always = options.reuse_always
        self._reuse = reuse
        self._prefixes = prefixes
        self._prefilled = prefilled
        self._clock = clock
        self._report = report
        self._schedule = Schedule(self._admit)
        rows = options.rows(on_cpu=runner.pool.on_cpu)
        self._forward_cost = ForwardCost(rows, options.stall_s)
        self._works: dict[WorkId, LocalWork] = {}
        self._running: dict[TokenSequence, LocalWork] = {}

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[WorkId]:
        return iter(self._works)

    def __contains__(self, id: WorkId) -> bool:
        return id in self._works

    @property
    def has_rows(self) -> bool:
        """Tell whether there is anything to compute."""
        return len(self._schedule) > 0

    def add(self, work: LocalWork) -> None:
        """Take a work, and queue the first sequences to compute for it."""
        self._works[work.request.id] = self._running[work.sequence] = work
        if work.segments is None:
            self._start(work.sequence)
            return
        payload = work.request.payload
        further = (payload.neighbours,) if isinstance(payload, EncodingInput) else ()
        for begun in self._reuse.begin(work.sequence, work.segments, *further):
            self._start(begun)

    def cancel(self, ids: Iterable[WorkId]) -> None:
        """Forget works and free their lanes; unknown ids are ignored.

        What is computed of a beginning stays, for the prompt that goes on with it.
        """
        for id in ids:
            if (work := self._works.get(id)) is None:
                continue
            lane = work.sequence.lane
            is_beginning = work.request.kind is PrimitiveKind.PARTIAL_PREFILLING
            if is_beginning and lane is not None and lane.ids:
                self._keep(work)
            else:
                self._forget(work)

    def reuse_pays(self, prompt: SegmentedPrompt, namespace: str, *, is_asked: bool) -> bool:
        """Tell whether prompts take less time if the texts of this one are reused.

        Args:
            prompt: with its parts.
            namespace: its tenant.
            is_asked: whether it is to be answered, and not only computed ahead.
        """
        pays = self._reuse.pays(prompt, namespace, self._forward_cost.seconds, is_asked=is_asked)
        return pays or self._reuse_always

    def take_loaded(self) -> None:
        """Queue works whose texts were loaded; wait for those only where nothing else is to do."""
        if self._reuse.is_looking:
            for sequence in self._reuse.looked(0.0 if len(self._schedule) else _LOOK_S):
                self._start(sequence)

    def forward(self) -> list[EngineOutput]:
        """Compute the next rows; return the outputs of their works."""
        schedule = self._schedule
        # Works that wait for kept texts are not in the schedule yet, but for the next forward, too.
        is_alone = schedule.is_alone and len(self._works) == 1
        plan = schedule.next(self._forward_cost.rows(decodes=schedule.decodes, is_alone=is_alone))
        if not plan:
            return self._no_room(next(iter(self._schedule)))
        logits = self._run([planned.rows for planned in plan])
        for planned in plan:
            self._advance(planned)
        asked = [self._running[planned.sequence] for planned in plan if planned.rows.asked]
        choices = choose(logits, [work.sampler for work in asked])
        self._end_encodings(plan)
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

    def _start(self, sequence: TokenSequence) -> None:
        """Queue a sequence whose texts are there; with them, work to encode texts ends."""
        work = self._running.get(sequence)
        if work is not None and work.only_encodes:
            self._forget(work)
            self._report(work.report("final"))
        else:
            self._schedule.add(sequence)

    def _admit(self, sequence: TokenSequence) -> bool:
        """Give a sequence its lane; of its prompt, the last token is always computed."""
        prompt = sequence.prefix_ids
        most = len(prompt) - 1 if sequence.exact is None else sequence.exact
        opened = self._prefixes.open(prompt, sequence.capacity, sequence.namespace, most)
        if opened is not None:
            sequence.begin(*opened)
            self._reuse.load(sequence)
        return opened is not None

    def _run(self, rows: list[SequenceRows]) -> Any:
        started = self._clock.now()
        logits = self._runner.run(rows)
        self._forward_cost.ran(sum(map(len, rows)), self._clock.now() - started)
        return logits

    def _advance(self, planned: Planned) -> None:
        """Count computed rows; those of a prompt are at once a prefix for others."""
        sequence = planned.sequence
        sequence.go_on(planned.rows.slots[-1] + 1)
        if not sequence.is_decoding and sequence.lane is not None:
            self._prefixes.grow(sequence.lane, sequence.computed_ids)
        self._reuse.advanced(sequence)

    def _computed_prompts(self, plan: Sequence[Planned]) -> Iterator[LocalWork]:
        for planned in plan:
            sequence = planned.sequence
            if sequence in self._running and not sequence.max_new and not sequence.pending:
                yield self._running[sequence]

    def _end_encodings(self, plan: Sequence[Planned]) -> None:
        """Store encoded texts, and start the prompts that waited for them."""
        for planned in plan:
            sequence = planned.sequence
            if sequence.pending or not self._reuse.is_encoding(sequence):
                continue
            for ready in self._reuse.encoded(sequence):
                self._start(ready)
            self._schedule.drop(sequence)
            if sequence.lane is not None:  # the next text is encoded behind its head
                self._prefixes.keep(sequence.lane)
                sequence.lane = None

    def _end_prompt(self, work: LocalWork) -> EngineOutput:
        sequence = work.sequence
        handle = self._prefilled.add(work.request.namespace, sequence)
        use = PromptUse(len(sequence.prompt) - sequence.from_prefix, sequence.from_prefix)
        self._keep(work)
        return EngineOutput(work.request.id, "final", use, handle=handle)

    def _end_completion(self, work: LocalWork) -> None:
        lane = work.sequence.lane
        assert lane is not None
        self._prefixes.grow(lane, work.sequence.computed_ids)
        self._keep(work)

    def _keep(self, work: LocalWork) -> None:
        lane = work.sequence.lane
        assert lane is not None
        # Of a prompt with tokens computed again, what encoded its texts has left the head.
        if work.sequence.exact is None or not work.sequence.skipped:
            work.sequence.lane = None
            self._prefixes.keep(lane)
        self._forget(work)

    def _forget(self, work: LocalWork) -> None:
        del self._works[work.request.id], self._running[work.sequence]
        for encoding in self._reuse.forget(work.sequence):
            self._leave(encoding)
        self._leave(work.sequence)

    def _leave(self, sequence: TokenSequence) -> None:
        self._schedule.drop(sequence)
        if sequence.lane is not None:
            self._prefixes.drop(sequence.lane)
            sequence.lane = None

    def _no_room(self, sequence: TokenSequence) -> list[EngineOutput]:
        encodes = self._reuse.is_encoding(sequence)
        waiting = self._reuse.readers(sequence) if encodes else [sequence]
        work_items = [self._running[reader] for reader in waiting]
        for work in work_items:
            self._forget(work)
        error = EngineError("the pool has no room", where="local language model")
        return [work.report("error", error=error) for work in work_items]
