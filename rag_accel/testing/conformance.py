"""The contract of an owned engine as tests that every engine must pass.

Subclass ``EngineContract`` in a test module, say how an engine and its work are made, and pytest
runs every rule against it::

    class TestMyEngine(EngineContract):
        def make_engine(self) -> Engine:
            return MyEngine()

        def make_request(self, number: int) -> EngineRequest:
            payload = TextBatch((f"text {number}",))
            return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload)

Rules about abilities that the engine's profile does not claim are skipped.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace

from rag_accel.engine_api import (
    Engine,
    EngineProfile,
    EngineRequest,
    GenerationOutput,
    Handle,
    WorkId,
)
from rag_accel.testing import checks
from rag_accel.testing.checks import check, skip
from rag_accel.testing.runner import EngineRunner


class EngineContract(ABC):
    """Tests of an owned engine against the rules of ``engine_api.Engine``.

    Attributes:
        timeout_s: longest time any single wait may take.
        tolerance: largest difference between numbers of results that count as equal.
    """

    timeout_s: float = 30.0
    tolerance: float = 1e-5

    @abstractmethod
    def make_engine(self) -> Engine:
        """Return a new engine; each test makes its own and closes it."""

    @abstractmethod
    def make_request(self, number: int) -> EngineRequest:
        """Return valid work; other numbers give other ids and other payloads."""

    def make_bad_request(self) -> EngineRequest | None:
        """Return work that this engine can only refuse; None skips the rules about it."""
        return None

    def make_waiting_request(self) -> EngineRequest:
        """Return work over which a step of an interruptible engine waits as long as possible."""
        return self.make_request(0)

    def test_the_engine_has_every_method_of_the_protocol(self) -> None:
        """An engine offers all methods of ``Engine``, be they inherited from ``EngineBase``.

        Troubleshooting: if this fails, derive the class from ``EngineBase`` or add what is missing.
        """
        with self._runner() as runner:
            check(isinstance(runner.engine, Engine), "the object lacks methods of Engine")

    def test_the_profile_is_constant_and_names_what_the_engine_is_given(self) -> None:
        """The scheduler reads ``profile`` once and relies on it.

        Troubleshooting: if this fails, build the profile in the constructor and return that object.
        """
        request = self.make_request(0)
        with self._runner() as runner:
            before = runner.engine.profile
            runner.run([request])
            check(isinstance(before, EngineProfile), "profile is no EngineProfile")
            check(request.kind in before.kinds, f"{request.kind} is not in profile.kinds")
            check(before.max_batch >= 1, f"profile.max_batch is {before.max_batch}")
            check(runner.engine.profile == before, "profile changed while the engine worked")

    def test_every_submitted_id_ends_exactly_once(self) -> None:
        """Each id gets one ``final`` or ``error``, and nothing after it.

        Troubleshooting: if this fails, the engine lost work, or kept an id after its end; a report
        for an id that was never submitted counts too.
        """
        work = self._work(3)
        with self._runner() as runner:
            outputs = runner.run(work)
        for request in work:
            kinds = [output.kind for output in outputs if output.id == request.id]
            ends, last = kinds.count("final") + kinds.count("error"), kinds[-1]
            check(ends == 1, f"{request.id} ended {ends} times")
            check(last in ("final", "error"), f"{request.id} reported {last!r} after its end")
        strange = {output.id for output in outputs} - {request.id for request in work}
        check(not strange, f"outputs for work that was never submitted: {sorted(strange)}")

    def test_valid_work_succeeds_and_only_errors_carry_an_exception(self) -> None:
        """A ``final`` has no exception, and valid work does not end with an ``error``.

        Troubleshooting: if this fails, look at the exception in the message; perhaps
        ``make_request`` makes work this engine cannot do.
        """
        with self._runner() as runner:
            outputs = runner.run(self._work(2))
        for output in outputs:
            check(output.error is None, f"{output.id} ({output.kind}) carries {output.error!r}")
            check(output.kind != "error", f"{output.id} ended with an error without exception")

    def test_an_ended_id_may_be_used_again(self) -> None:
        """After ``final`` the engine has forgotten the id.

        Troubleshooting: if this fails, drop the bookkeeping of an id where its end is reported.
        """
        work = self._work(1)
        with self._runner() as runner:
            runner.run(work)
            checks.check_final(runner.run(work), work)

    def test_a_non_stepped_engine_ends_everything_in_one_step(self) -> None:
        """An engine whose profile is not ``stepped`` holds no work between steps.

        Troubleshooting: if this fails, finish all work in ``step`` or set ``stepped=True``.
        """
        work = self._work(3)
        with self._runner() as runner:
            if runner.engine.profile.stepped:
                skip("the profile says stepped")
            runner.submit(work)
            checks.check_final(runner.step(), work)

    def test_a_step_without_work_returns(self) -> None:
        """``step`` returns nothing at once when nothing is held, before and after work.

        Troubleshooting: if this fails, return an empty list before waiting for anything.
        """
        with self._runner() as runner:
            check(not runner.step(), "a step of a new engine had outputs")
            runner.run(self._work(1))
            check(not runner.step(), "a step had outputs after everything had ended")

    def test_unknown_ids_and_handles_are_ignored(self) -> None:
        """``cancel`` and ``release`` may name what the engine never saw or has forgotten.

        Troubleshooting: if this fails, use ``dict.pop(id, None)`` in place of ``del``.
        """
        work = self._work(1)
        with self._runner() as runner:
            runner.cancel([WorkId("never submitted")])
            runner.release([Handle("never given out")])
            runner.run(work)
            runner.cancel([work[0].id])
            checks.check_final(runner.run(self._work(2)), self._work(2))

    def test_a_cancelled_id_never_reports(self) -> None:
        """Work cancelled before its step has no output, and its neighbour is not disturbed.

        Troubleshooting: if this fails, override ``cancel`` and drop what ``submit`` queued; the
        scheduler also cancels what a step that raised may have left behind.
        """
        kept, gone = self._work(2)
        with self._runner() as runner:
            runner.submit([gone, kept])
            runner.cancel([gone.id])
            outputs = [*runner.finish([kept.id]), *runner.step()]
        checks.check_silent(gone, outputs)
        checks.check_final(outputs, [kept])

    def test_work_cancelled_between_steps_never_reports_again(self) -> None:
        """A stepped engine forgets running work when it is cancelled.

        Troubleshooting: if this fails, look the id up again before anything is reported.
        """
        kept, gone = self._work(2)
        with self._runner() as runner:
            if not runner.engine.profile.stepped:
                skip("the profile does not say stepped")
            runner.submit([gone, kept])
            first = runner.step()
            runner.cancel([gone.id])
            ended = any(output.id == kept.id and checks.is_end(output) for output in first)
            later = [*([] if ended else runner.finish([kept.id])), *runner.step()]
        checks.check_silent(gone, later)
        checks.check_final([*first, *later], [kept])

    def test_one_bad_item_does_not_harm_its_neighbours(self) -> None:
        """Bad work ends with an ``error`` of its own; the rest of the batch succeeds.

        Troubleshooting: if this fails, check each payload in ``submit``, remember what is bad and
        report it in ``step``; neither may raise for it.
        """
        bad = self.make_bad_request()
        if bad is None:
            skip("make_bad_request returns None")
        first, last = self._work(2)
        with self._runner() as runner:
            outputs = runner.run([first, bad, last])
        checks.check_final([output for output in outputs if output.id != bad.id], [first, last])
        ends = [output for output in outputs if output.id == bad.id and checks.is_end(output)]
        check([end.kind for end in ends] == ["error"], f"the bad item ended with {ends}")
        check(isinstance(ends[0].error, BaseException), "the error output has no exception")

    def test_equal_payloads_give_equal_results_when_pure(self) -> None:
        """A pure engine's result depends on the payload alone, not on its batch or its past.

        Troubleshooting: if this fails, find the state, seed or batch effect, or set ``pure=False``.
        """
        first, other = self._work(2)
        twin = replace(first, id=WorkId(f"{first.id}-twin"))
        with self._runner() as runner:
            if not runner.engine.profile.pure:
                skip("the profile does not say pure")
            batch, later = runner.run([first, other, twin]), runner.run([first])
        value, same = checks.final_value(batch, first), checks.final_value(batch, twin)
        alone = checks.final_value(later, first)
        equal = checks.results_equal(value, same, self.tolerance)
        check(equal, "equal payloads in one batch gave different results")
        equal = checks.results_equal(value, alone, self.tolerance)
        check(equal, "the same payload gave another result alone than in a batch")

    def test_partial_outputs_come_only_when_asked_for_and_add_up(self) -> None:
        """Without ``stream`` there is no ``partial``; with it the pieces make up the final text.

        Troubleshooting: if this fails, look at ``request.stream``; a ``partial`` carries the new
        piece of text, not all of it so far.
        """
        request = self.make_request(0)
        with self._runner() as runner:
            plain = runner.run([replace(request, stream=False)])
            streamed = runner.run([replace(request, stream=True)])
        check(not checks.pieces(plain), "partial outputs although stream is False")
        value, pieces = checks.final_value(streamed, request), checks.pieces(streamed)
        if pieces and isinstance(value, GenerationOutput):
            check("".join(pieces) == value.text, "the pieces do not make up the final text")

    def test_handles_can_be_released_twice(self) -> None:
        """Releasing a handle again does nothing, and the engine still works.

        Troubleshooting: if this fails, free a handle's state only if it is still there.
        """
        work = self._work(1)
        with self._runner() as runner:
            handles = [output.handle for output in runner.run(work) if output.handle is not None]
            if not handles:
                skip("this work gives out no handle")
            runner.release(handles)
            runner.release(handles)
            checks.check_final(runner.run(work), work)

    def test_interrupt_makes_a_waiting_step_return(self) -> None:
        """``interrupt`` ends a waiting step from another thread, with or without outputs.

        Troubleshooting: if this fails, wait on a condition that ``interrupt`` also notifies.
        """
        with self._runner() as runner:
            if not runner.engine.profile.interruptible:
                skip("the profile does not say interruptible")
            request = self.make_waiting_request()
            runner.submit([request])
            runner.step_under_interrupts()
            runner.cancel([request.id])

    def test_close_drops_unfinished_work_and_may_be_called_again(self) -> None:
        """``close`` returns although work is unfinished, and a second one does nothing.

        Troubleshooting: if this fails, make ``close`` forget work and guard what it frees.
        """
        with self._runner() as runner:
            runner.submit(self._work(2))
            runner.close()
            runner.close()

    def test_close_leaves_no_thread(self) -> None:
        """Threads an engine started have ended soon after ``close``.

        Troubleshooting: if this fails, tell the engine's threads to stop in ``close`` and join
        them; a thread pool needs ``shutdown``.
        """
        # What a library starts once per process at first use is not the engine's own thread.
        self._use_and_close()
        before = set(threading.enumerate())
        self._use_and_close()
        left = checks.threads_left(before, self.timeout_s)
        check(not left, f"threads still alive after close: {', '.join(left)}")

    def _use_and_close(self) -> None:
        with self._runner() as runner:
            runner.run(self._work(2))

    def _work(self, count: int) -> list[EngineRequest]:
        return [self.make_request(number) for number in range(count)]

    def _runner(self) -> EngineRunner:
        return EngineRunner(self.make_engine(), self.timeout_s)
