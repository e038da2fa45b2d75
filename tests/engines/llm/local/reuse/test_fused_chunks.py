"""Of reused texts a part is computed again in the prompt: all of it gives what computing gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from chunk_prompts import ALL, A, B, C, answer, asked, make
from fake_runner import FakeRunner, tokenizer
from tiny_chat import model

from rag_accel.engine_api import EngineRequest, GenerationInput, GenerationOutput, PromptUse
from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.kv.selection import QuestionGuided


class WatchedRunner:
    """A runner that keeps what the lanes held after each forward."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.forwards: list[tuple[Sequence[SequenceRows], torch.Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, rows: Sequence[SequenceRows]) -> Any:
        logits = self._runner.run(rows)
        self.forwards.append((rows, self._runner.pool.keys.clone()))
        return logits


def real(**options: Any) -> tuple[LocalLLMEngine, WatchedRunner]:
    loaded = load(model(), tokenizer(), pool_bytes=1 << 24)
    runner = WatchedRunner(loaded.runner)
    chosen = LocalOptions(**{"kv_reuse": "fused", "reuse_always": True, **options})
    return LocalLLMEngine(runner, loaded.tokenizer, options=chosen), runner  # type: ignore[arg-type]


def with_logprobs(work: EngineRequest) -> EngineRequest:
    payload = GenerationInput(
        work.payload.messages,
        max_tokens=6,
        chunk_spans=work.payload.chunk_spans,
        options={"logprobs": True},
    )
    return EngineRequest(work.id, work.request_id, work.kind, payload)


def told(output: GenerationOutput) -> list[float]:
    return [one.logprob for one in output.logprobs]


@pytest.mark.parametrize("selector", [QuestionGuided(), QuestionGuided("question")])
@pytest.mark.parametrize("step_tokens", [24, 512])
def test_all_computed_again_is_the_whole_prompt_computed(selector: Any, step_tokens: int) -> None:
    engine, _ = real(recompute_ratio=1.0, selector=selector, step_tokens=step_tokens)
    answer(engine, asked("first", A, B, C))
    fused = answer(engine, with_logprobs(asked("two", C, A, B)))
    # The first prompt of texts that were never kept computes the same tokens, none taken over.
    whole, _ = real(recompute_ratio=1.0, chunk_bytes=0, prefix_lanes=0)
    exact = answer(whole, with_logprobs(asked("two", C, A, B)))
    assert fused.text == exact.text
    assert told(fused) == pytest.approx(told(exact), abs=1e-5)
    assert fused.use is not None
    assert fused.use.from_chunks == 0
    assert fused.use.recomputed == ALL


def test_chosen_tokens_of_the_second_layer_are_those_of_the_whole_prompt() -> None:
    engine, runner = real(recompute_ratio=0.3)
    answer(engine, asked("one", A, B, C))
    runner.forwards.clear()
    work = asked("two", C, A, B)
    answer(engine, work)
    (rows, keys) = next(
        (part, keys)
        for forward, keys in runner.forwards
        for part in forward
        if part.asked and len(part) > 1
    )
    # The same tokens as one prompt, in a lane of its own.
    ids = runner.forwards[0][0][0].ids
    assert ids
    segments = engine._reader._of_messages().segmented(  # type: ignore[attr-defined]
        work.payload.messages, work.payload.chunk_spans, 8
    )
    assert segments is not None
    whole = segments.ids
    lane = runner.pool.take(len(whole))
    runner.run([SequenceRows(lane, whole, range(len(whole)), range(len(whole)))])
    direct = runner.pool.keys[1, lane]
    for slot in rows.slots:
        torch.testing.assert_close(keys[1, rows.lane, :, slot], direct[:, slot], atol=1e-5, rtol=0)


def test_the_state_that_is_kept_never_changes() -> None:
    engine, _ = real(recompute_ratio=0.5)
    answer(engine, asked("one", A, B, C))
    states = dict(engine._reuse._store._states)  # type: ignore[attr-defined]
    before = {key: (one.keys.clone(), one.values.clone()) for key, one in states.items()}
    for order in ((C, B, A), (B, A, C), (A, C)):
        answer(engine, asked("again", *order))
    assert len(before) == 3
    for key, (keys, values) in before.items():
        assert torch.equal(states[key].keys, keys)
        assert torch.equal(states[key].values, values)


@pytest.mark.parametrize("ratio", [0.0, 0.15, 0.5, 1.0])
def test_every_token_is_counted_once(ratio: float) -> None:
    engine = make(FakeRunner(), kv_reuse="fused", recompute_ratio=ratio, reuse_always=True)
    answer(engine, asked("one", A, B, C))
    done = answer(engine, asked("two", B, C, A))
    use = done.use or PromptUse()
    assert use.recomputed == math.ceil(ratio * ALL)
    assert use.from_chunks == ALL - use.recomputed
    assert use.approximate == ALL - use.recomputed
    assert not use.is_exact
    assert use.computed + use.from_prefix + use.from_chunks == done.prompt_tokens


def test_prompts_together_choose_each_for_itself() -> None:
    work_items = [asked(str(at), *order) for at, order in enumerate([(A, B), (B, A), (C, A)])]
    alone = []
    for work in work_items:
        engine, _ = real(recompute_ratio=0.3)
        answer(engine, asked("first", A, B, C))
        alone.append(answer(engine, work).text)
    engine, _ = real(recompute_ratio=0.3)
    answer(engine, asked("first", A, B, C))
    engine.submit(work_items)
    from fake_runner import finish, value

    outputs = finish(engine, "0", "1", "2")
    assert [value(outputs, str(at)).text for at in range(3)] == alone


def test_a_share_beyond_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="recompute_ratio"):
        LocalOptions(kv_reuse="fused", recompute_ratio=1.5)
