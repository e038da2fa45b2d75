"""The suite on a language model of the process counts tokens and times as its rows say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from fake_runner import tokenizer
from hf_callers import own_model
from tiny_chat import TEXTS

from bench.local_llm import answers, beside
from bench.local_llm.chains import Streamed, streamed
from bench.local_llm.prompts import Prompts
from bench.local_llm.streams import RATE, Streams, compare_streams
from bench.suites.serving import INT8, Material, Sizes, _Bench
from rag_accel import Accelerator
from rag_accel.engines.llm.local.model import runner_choice
from rag_accel_demo.load import Load


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(tokenizer(), TEXTS)


def test_no_prompt_begins_as_another_and_their_sizes_are_those_wanted(prompts: Prompts) -> None:
    asked = prompts.asked([300, 400])
    assert len({one["number"] for one in (*asked, *prompts.asked([300]))}) == 3
    counts = [prompts.count(one["context"]) for one in asked]
    assert counts[1] - counts[0] == pytest.approx(100, abs=5)


def test_a_rate_counts_tokens_and_not_answers(prompts: Prompts) -> None:
    whole, half = ("one two three four",), ("one two",)
    loads = {answers.PLAIN: [Load(half, (1.0,), 1.0)], answers.OURS: [Load(whole, (1.0,), 1.0)]}
    compared = answers.Compared("1 user", loads, prompts)
    assert compared.gain(answers.PLAIN) == prompts.count(whole[0]) / prompts.count(half[0])
    (equal,) = [row for row in compared.rows() if row.metric == "answers_equal_to_plain"]
    assert (equal.median, equal.n) == (0, 1)


def test_the_first_text_of_a_stream_is_not_an_empty_piece() -> None:
    read: list[str] = []

    def pieces() -> Any:
        for piece in ("", "a", "b"):
            read.append(piece)
            yield piece

    assert streamed(pieces()).answer == "ab"
    assert read == ["", "a", "b"]


def test_a_rate_begins_after_the_first_piece(prompts: Prompts) -> None:
    piece, rest = "one ", "two three four"
    tokens = prompts.count(piece + rest) - prompts.count(piece)
    ours = Streamed(1.0, piece + rest, piece, 3.0)
    plain = Streamed(2.0, piece + rest, piece, 6.0)
    found = Streams("1 user", {answers.PLAIN: [plain], answers.OURS: [ours]}, prompts)
    assert found.first_text() == 0.5
    assert found.rate(answers.OURS) == 2.0
    assert [row.median for row in found.rows() if row.metric == RATE] == [tokens / 4, tokens / 2]


def test_streams_of_one_piece_have_no_rate(prompts: Prompts) -> None:
    whole = Streamed(1.0, "one two", "one two", 1.0)
    found = Streams("1 user", {answers.PLAIN: [whole], answers.OURS: [whole]}, prompts)
    assert found.rate(answers.OURS) is None
    assert not [row for row in found.rows() if row.metric == RATE]


def test_all_arms_stream_the_same_prompts_and_the_first_does_not_count(prompts: Prompts) -> None:
    asked: dict[str, list[Any]] = {answers.PLAIN: [], answers.OURS: []}

    def arm(name: str) -> Any:
        def stream(one: Any) -> Streamed:
            asked[name].append(one)
            return Streamed(1.0, "one two", "one", 2.0)

        return stream

    found = compare_streams("1 user", {name: arm(name) for name in asked}, prompts, [40, 50], 2)
    assert asked[answers.PLAIN] == asked[answers.OURS]
    assert len({one["number"] for one in asked[answers.OURS]}) == 5
    assert {name: len(each) for name, each in found.found.items()} == dict.fromkeys(asked, 4)


def test_runners_are_compared_beside_a_thread_that_is_busy(prompts: Prompts) -> None:
    import threading

    counts: list[int] = []

    def arm(wall_s: float) -> answers.Arm:
        def answer(asked: Any) -> Load:
            counts.append(threading.active_count())
            return Load(("one two",) * len(asked), (wall_s,), wall_s)

        return answer

    arms = {"quick": arm(1.0), "slow": arm(4.0)}
    rows, ratio = beside.compare_beside("quick", "slow", arms, prompts, [40], 2)
    assert ratio == 4.0
    assert [row.n for row in rows] == [2, 2]
    before, *busy = sorted(counts)[:1], *sorted(counts)[2:]
    assert set(busy) == {before[0] + 1}


def test_int8_weights_that_cannot_run_are_a_row_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("langchain_huggingface")
    pytest.importorskip("openvino")
    monkeypatch.setattr(runner_choice, "_computes_bfloat16", lambda: False)
    own_model(torch.bfloat16).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    sizes = Sizes(prompt=(40, 60), tokens=4, alone_prompts=1, alone_turns=1, tuning_tokens=2)
    with Accelerator() as accelerator:
        bench = _Bench(sizes, Material(str(tmp_path), TEXTS))
        bench.one(accelerator)
    (missing,) = [row for row in bench.rows if row.metric == "missing" and row.system == INT8]
    assert "dtype='float32'" in missing.workload
    assert "ttft_1" in bench.found
    assert "int8_tokens_1" not in bench.found
