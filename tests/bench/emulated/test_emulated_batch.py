"""Continuous batching with chunked prefill, driven step by step without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.emulated.batch import ContinuousBatch, DeviceSequence, DeviceStep, Update
from bench.emulated.table import H100_LIKE_1B, step_time_s
from bench.emulated.text import Script


class NoSink:
    def deliver(self, updates: Sequence[Update]) -> None:
        pass


def make(prompt: int, answer: int, **fields: object) -> DeviceSequence:
    script = Script(tuple(f"w{number} " for number in range(answer)), prompt, "stop")
    return DeviceSequence(script, NoSink(), prompt, **fields)  # type: ignore[arg-type]


def run_step(batch: ContinuousBatch, at_s: float = 0.0) -> tuple[DeviceStep, list[Update]]:
    step = batch.begin_step(at_s)
    assert step is not None
    return step, batch.end_step()


def run_all(batch: ContinuousBatch) -> list[tuple[DeviceStep, list[Update]]]:
    at_s, steps = 0.0, []
    while (step := batch.begin_step(at_s)) is not None:
        at_s = step.end_s
        steps.append((step, batch.end_step()))
    return steps


def test_a_decoding_step_holds_prompt_and_written_tokens() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    batch.add(make(100, 3))
    steps = run_all(batch)
    durations = [step.end_s - step.start_s for step, _ in steps]
    assert durations == pytest.approx(
        [
            step_time_s(H100_LIKE_1B, 0, 0, 100),
            step_time_s(H100_LIKE_1B, 1, 101, 0),
            step_time_s(H100_LIKE_1B, 1, 102, 0),
        ],
        rel=1e-9,
    )


def test_a_long_prompt_is_read_in_chunks() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    batch.add(make(1100, 1))
    steps = run_all(batch)
    durations = [step.end_s - step.start_s for step, _ in steps]
    expected = [step_time_s(H100_LIKE_1B, 0, 0, chunk) for chunk in (512, 512, 76)]
    assert durations == pytest.approx(expected, rel=1e-9)


def test_at_most_max_sequences_run_and_the_rest_waits() -> None:
    batch = ContinuousBatch(replace(H100_LIKE_1B, max_sequences=2))
    for _ in range(3):
        batch.add(make(0, 2))
    run_step(batch)
    assert (batch.num_running, batch.num_waiting) == (2, 1)
    run_step(batch)
    run_step(batch)
    assert (batch.num_running, batch.num_waiting) == (1, 0)


def test_a_sequence_joins_no_step_that_began_before_it_arrived() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    batch.add(make(0, 3))
    batch.add(make(0, 3, arrived_s=0.001))
    run_step(batch, 0.0)
    assert (batch.num_running, batch.num_waiting) == (1, 1)


def test_an_idle_device_starts_at_the_arrival_not_when_it_is_asked() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    batch.add(make(0, 1, arrived_s=5.0))
    step, _ = run_step(batch, 1.0)
    assert step.start_s == 5.0


def test_a_discarded_sequence_frees_its_place_and_says_nothing() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    gone, kept = make(0, 5, stream=True), make(0, 5, stream=True)
    batch.add(gone)
    batch.add(kept)
    batch.begin_step(0.0)
    batch.discard(gone)
    assert batch.num_running == 1
    assert [update.sequence for update in batch.end_step()] == [kept]


def test_a_sequence_discarded_within_its_prefill_says_nothing() -> None:
    batch = ContinuousBatch(H100_LIKE_1B)
    gone = make(10, 5)
    batch.add(gone)
    batch.begin_step(0.0)
    batch.discard(gone)
    assert batch.end_step() == []
    assert batch.begin_step(1.0) is None


def test_drain_returns_what_has_not_ended() -> None:
    batch = ContinuousBatch(replace(H100_LIKE_1B, max_sequences=1))
    first, second = make(0, 9), make(0, 9)
    batch.add(first)
    batch.add(second)
    run_step(batch)
    assert batch.drain() == [first, second]
    assert batch.begin_step(0.0) is None


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 20)), max_size=12),
    max_sequences=st.integers(1, 6),
    chunk=st.integers(1, 600),
)
def test_every_sequence_ends_once_and_every_token_is_counted(
    sizes: list[tuple[int, int]], max_sequences: int, chunk: int
) -> None:
    table = replace(H100_LIKE_1B, max_sequences=max_sequences, chunk_tokens=chunk)
    batch = ContinuousBatch(table)
    sequences = [make(prompt, answer) for prompt, answer in sizes]
    for sequence in sequences:
        batch.add(sequence)
    steps = run_all(batch)
    ended = [update.sequence for _, updates in steps for update in updates if update.is_end]
    assert sorted(map(id, ended)) == sorted(map(id, sequences))
    assert batch.counters.prefill_tokens == sum(prompt for prompt, _ in sizes)
    assert batch.counters.decode_tokens == sum(answer for _, answer in sizes)
    assert batch.counters.busy_s == pytest.approx(steps[-1][0].end_s if steps else 0.0)
