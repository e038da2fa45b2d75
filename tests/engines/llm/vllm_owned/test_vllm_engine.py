"""The engine over a fake of vLLM: contract, calls, handles, cancellation, faults, closing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import CONTEXT, FIRST, FakeDeadError, FakeVllm, fake_library
from llm_harness import eventually, finish, run, work

from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    GenerationInput,
    Handle,
    Message,
    PrimitiveKind,
    PromptUse,
    StepBudget,
    TextBatch,
)
from rag_accel.engines import VllmEngine, VllmOptions
from rag_accel.engines.llm.local.text.tokens import EncodingInput, TokenInput, TokenOutput
from rag_accel.engines.llm.vllm.calls import PATIENCE_S, priority_of
from rag_accel.errors import ConfigError, EngineError, EngineLostError
from rag_accel.kv.segments import SegmentedPrompt
from rag_accel.testing.conformance import EngineContract

PARTIAL = PrimitiveKind.PARTIAL_PREFILLING


class TestContract(EngineContract):
    @pytest.fixture(autouse=True)
    def _use(self, folder: Path, vllm: FakeVllm) -> None:
        self.folder, self.vllm = folder, vllm

    def make_engine(self) -> Engine:
        return VllmEngine(self.folder, library=fake_library(self.vllm))

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", max_tokens=3 + number)

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad"), payload=TextBatch(("x",)))

    def make_waiting_request(self) -> EngineRequest:
        self.vllm.gate = asyncio.Event()
        return work("waiting")


def generation(**fields: Any) -> GenerationInput:
    return GenerationInput((Message("user", "what is rag"),), **fields)


def asked(payload: GenerationInput, id: str = "a", **fields: Any) -> EngineRequest:
    return replace(work(id, **fields), payload=payload)


@pytest.mark.parametrize("stream", [False, True])
def test_text_counts_and_reason_are_those_of_vllm(make: Any, vllm: FakeVllm, stream: bool) -> None:
    engine = make()
    engine.submit([work(stream=stream, max_tokens=3)])
    *partial, final = finish(engine, "a")
    assert [output.value for output in partial] == ([" 5", " 6", " 7"] if stream else [])
    output = final.value
    assert (output.text, output.completion_tokens, output.finish_reason) == (" 5 6 7", 3, "length")
    assert output.prompt_tokens == len(vllm.calls[0].ids) == output.use.computed


def test_options_are_given_by_the_names_of_vllm(make: Any, vllm: FakeVllm) -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 7, "logprobs": True}
    payload = generation(max_tokens=2, stop=("END",), options=options)
    output = run(make(), asked(payload)).value
    call = vllm.calls[0]
    assert (call.temperature, call.top_p, call.top_k, call.seed) == (0.5, 0.9, 3, 7)
    assert (call.stop, call.max_tokens, call.output_kind) == (["END"], 2, "final")
    # The ends of the model's own configuration, in place of those that vLLM reads.
    assert (call.ignore_eos, call.stop_token_ids) == (True, [1])
    assert [entry.logprob for entry in output.logprobs] == [-0.5, -0.5]


def test_without_options_the_most_probable_token_is_asked_for(make: Any, vllm: FakeVllm) -> None:
    run(make(max_tokens_default=9), asked(generation()))
    call = vllm.calls[0]
    assert (call.temperature, call.max_tokens) == (0.0, 9)
    assert not hasattr(call, "seed")
    assert not hasattr(call, "logprobs")


def test_a_negative_seed_is_still_a_seed(make: Any, vllm: FakeVllm) -> None:
    run(make(), asked(generation(options={"seed": -1})))
    assert vllm.calls[0].seed == (1 << 63) - 1


def test_an_unknown_option_is_refused_by_name_and_its_neighbour_served(make: Any) -> None:
    engine = make()
    engine.submit([asked(generation(options={"typical_p": 1}), "bad"), work("good")])
    ends = {output.id: output for output in finish(engine, "bad", "good")}
    assert isinstance(ends["bad"].error, ConfigError)
    assert "typical_p" in str(ends["bad"].error)
    assert ends["good"].kind == "final"


def test_a_prompt_longer_than_the_model_is_refused_before_vllm_sees_it(
    make: Any, vllm: FakeVllm
) -> None:
    long = GenerationInput((Message("user", "rag " * CONTEXT),), max_tokens=1)
    error = run(make(), asked(long)).error
    assert isinstance(error, EngineError)
    assert str(CONTEXT) in str(error)
    assert vllm.calls == []


def test_completions_end_where_the_context_does(make: Any, vllm: FakeVllm) -> None:
    run(make(), work(max_tokens=10 * CONTEXT))
    call = vllm.calls[0]
    assert call.max_tokens == CONTEXT - len(call.ids)


def test_token_ids_are_continued_up_to_their_own_ends(make: Any, vllm: FakeVllm) -> None:
    vllm.end = 2
    payload = TokenInput(ids=(3, 4, 5), ends=frozenset({9, 8}), most=4)
    output = run(make(), asked(payload)).value
    assert isinstance(output, TokenOutput)
    assert (output.tokens, output.finish_reason) == ((FIRST, FIRST + 1), "stop")
    call = vllm.calls[0]
    assert (call.ids, call.stop_token_ids, call.max_tokens) == ((3, 4, 5), [8, 9], 4)


def test_texts_that_are_only_encoded_are_refused_by_name(make: Any) -> None:
    error = run(make(), asked(EncodingInput(prompt=SegmentedPrompt(())))).error
    assert isinstance(error, EngineError)
    assert "EncodingInput" in str(error)


def test_a_beginning_is_computed_once_and_counts_as_computed_for_whom_it_was(
    make: Any, vllm: FakeVllm
) -> None:
    engine = make()
    beginning = generation()
    handle = run(engine, asked(beginning, kind=PARTIAL)).handle
    ahead = vllm.calls[0]
    assert (ahead.max_tokens, ahead.detokenize) == (1, False)
    first = run(engine, replace(work("b"), handle=handle)).value
    assert vllm.calls[1].ids[: len(ahead.ids)] == ahead.ids
    assert first.use == PromptUse(computed=first.prompt_tokens)
    second = run(engine, replace(work("c"), handle=handle)).value
    assert second.use.from_prefix > 0


def test_handles_are_of_one_namespace_and_end_with_their_release(make: Any) -> None:
    engine = make()
    handle = run(engine, asked(generation(), kind=PARTIAL, namespace="one")).handle
    for request in (
        work("b", namespace="two", handle=handle),
        work("c", handle=Handle("never")),
    ):
        assert "unknown handle" in str(run(engine, request).error)
    assert run(engine, work("d", namespace="one", handle=handle)).kind == "final"
    engine.release([handle, handle])
    assert "unknown handle" in str(run(engine, work("e", namespace="one", handle=handle)).error)


def test_tenants_find_no_beginning_of_each_other(make: Any, vllm: FakeVllm) -> None:
    engine = make()
    uses = [
        run(engine, work(str(at), namespace=name)).value.use.from_prefix
        for at, name in enumerate(["", "one", "two", "one"])
    ]
    assert [use > 0 for use in uses] == [False, False, False, True]
    assert len({call.salt for call in vllm.calls}) == 3
    assert "one" not in str(vllm.calls[1].salt)


def test_cancelled_work_leaves_vllm_and_its_neighbour_stays(make: Any, vllm: FakeVllm) -> None:
    engine = make()
    vllm.gate = asyncio.Event()
    engine.submit([work("gone"), work("kept")])
    eventually(lambda: len(vllm.calls) == 2)
    engine.cancel(["gone"])
    eventually(lambda: len(vllm.aborted) == 1)
    assert vllm.aborted == [vllm.calls[0].id]
    engine._thread.post(vllm.gate.set)
    assert {output.id for output in finish(engine, "kept")} == {"kept"}


def test_a_failed_request_says_what_vllm_said(make: Any, vllm: FakeVllm) -> None:
    vllm.fault = ValueError("no such thing")
    error = run(make(), work()).error
    assert type(error) is EngineError
    assert "ValueError: no such thing" in str(error)


def test_an_engine_that_has_ended_is_named_and_no_longer_healthy(make: Any, vllm: FakeVllm) -> None:
    engine = make()
    assert engine.health().is_ready
    vllm.fault, vllm.errored = FakeDeadError("dead"), True
    assert isinstance(run(engine, work()).error, EngineLostError)
    assert engine.health().state == "lost"


def test_a_request_that_vllm_aborts_is_an_error_and_no_text(make: Any, vllm: FakeVllm) -> None:
    vllm.reason = "abort"
    output = run(make(), work())
    assert isinstance(output.error, EngineError)
    assert "abort" in str(output.error)


def test_work_that_never_ends_is_given_up_by_name(make: Any, vllm: FakeVllm) -> None:
    vllm.gate = asyncio.Event()
    error = run(make(work_timeout_s=0.01), work()).error
    assert isinstance(error, EngineError)
    assert "work_timeout_s" in str(error)
    assert len(vllm.aborted) == 1


def test_closing_ends_vllm_once_and_drops_work(make: Any, vllm: FakeVllm) -> None:
    engine = make()
    vllm.gate = asyncio.Event()
    engine.submit([work()])
    eventually(lambda: len(vllm.calls) == 1)
    engine.close()
    engine.close()
    assert (vllm.shutdowns, len(vllm.aborted)) == (1, 1)
    assert engine.step(StepBudget(time_s=0.0)) == []


def test_a_start_that_fails_is_named_and_leaves_no_thread(folder: Path, vllm: FakeVllm) -> None:
    import threading

    vllm.start_fault = RuntimeError("Engine core initialization failed")
    with pytest.raises(ConfigError, match="Engine core initialization failed"):
        VllmEngine(folder, library=fake_library(vllm))
    assert [thread.name for thread in threading.enumerate() if "vllm" in thread.name] == []


def test_a_start_of_another_interface_names_the_version(folder: Path, vllm: FakeVllm) -> None:
    vllm.start_fault = TypeError("unexpected keyword 'disable_log_stats'")
    with pytest.raises(ConfigError, match=r"another interface.*0\.32\.0"):
        VllmEngine(folder, library=fake_library(vllm))


def test_bounds_are_given_to_vllm(make: Any, vllm: FakeVllm) -> None:
    make(max_requests=3, pool_bytes=1 << 20, engine_args={"max_model_len": 100})
    given = vllm.config.arguments
    assert (given.max_num_seqs, given.kv_cache_memory_bytes) == (3, 1 << 20)
    assert (given.max_model_len, given.scheduling_policy) == (100, "priority")
    assert given.kv_transfer_config is None


def test_an_argument_that_vllm_does_not_know_is_named(folder: Path, vllm: FakeVllm) -> None:
    options = VllmOptions(engine_args={"max_model_length": 1})
    with pytest.raises(ConfigError, match="max_model_length"):
        VllmEngine(folder, options=options, library=fake_library(vllm))


def test_a_folder_without_a_model_is_refused_before_vllm_starts(
    tmp_path: Path, vllm: FakeVllm
) -> None:
    with pytest.raises(ConfigError, match="tokenizer or configuration"):
        VllmEngine(tmp_path, library=fake_library(vllm))
    assert vllm.config is None


class TestPriority:
    def test_a_deadline_goes_before_earlier_arrivals(self) -> None:
        early = work("a", arrived_at=1.0)
        urgent = work("b", arrived_at=5.0, deadline=7.0)
        assert priority_of(urgent) < priority_of(early)

    def test_without_deadlines_the_earlier_arrival_is_first(self) -> None:
        assert priority_of(work("a", arrived_at=1.0)) < priority_of(work("b", arrived_at=1.5))

    def test_of_one_request_the_longest_way_is_first(self) -> None:
        assert priority_of(work("a", depth=3)) < priority_of(work("b", depth=1))

    def test_what_has_waited_long_goes_before_a_new_deadline(self) -> None:
        old, new = work("a", arrived_at=0.0), work("b", arrived_at=PATIENCE_S, deadline=90.0)
        assert priority_of(old) < priority_of(new)

    def test_a_deadline_far_away_does_not_put_work_off(self) -> None:
        assert priority_of(work("a", deadline=1e6)) == priority_of(work("b"))
