"""The suite on first tokens runs all arms, with known and new texts, and defines its ratios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("llama_index.llms.huggingface")
pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer

from bench.arms import bench_accelerator
from bench.kv import break_even, first_token, kvboost, swap_in
from bench.kv.break_even import Length
from bench.kv.first_token import (
    CACHEBLEND,
    EXACT,
    FUSED,
    PLAIN,
    REUSE,
    First,
    FirstTokens,
    Shape,
    Turns,
    ours,
)
from bench.measure import Pairs
from bench.results import SuiteResult, as_json, from_json
from bench.suites import kv_ttft, ratio_definitions
from rag_accel.engines.llm.local.options import KvReuse
from rag_accel.fidelity.prompts import TextCutter

pytestmark = pytest.mark.usefixtures("loop_of_the_thread")

TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by the same rope.",
    "The filter of the pump is cleaned every month, or when the water no longer comes.",
)
TINY = kv_ttft.Sizes(
    shape=Shape(hidden=64, layers=2, heads=4, kv_heads=2, mlp=128, context=1024),
    texts=3,
    tokens=40,
    turns=1,
    kvboost_turns=1,
    auto_texts=2,
    auto_tokens=(40, 80),
    auto_turns=1,
    users=3,
    user_tokens=20,
    user_turns=1,
    swap_tokens=30,
    swap_turns=1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tiny-model")
    tiny_chat.model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return str(path)


#: Speaks as the real script does, and finds every piece that it was given before.
STAND_IN = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
known = {"grid": set(), "spans": set()}
for line in sys.stdin:
    asked = json.loads(line)
    engine, ids = asked["engine"], asked["ids"]
    if engine == "grid":
        pieces = [tuple(ids[at:at + 128]) for at in range(0, len(ids), 128)]
    else:
        pieces = [tuple(ids[start:end]) for start, end in asked["spans"]]
    reused = sum(len(one) for one in pieces if one in known[engine])
    known[engine].update(pieces)
    seconds = {"grid": 4.0, "spans": 2.0}[engine]
    print(json.dumps({"seconds": seconds, "token": "a", "reused": reused / len(ids)}), flush=True)
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script: Path = tmp_path_factory.mktemp("stand-in") / "kvboost.py"
    script.write_text(STAND_IN)
    return script


@pytest.fixture(scope="module")
def found(folder: str, stand_in: Path) -> SuiteResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        patch.setattr(kvboost, "ENVIRONMENT", Path(sys.executable))
        patch.setattr(kvboost, "SCRIPT", stand_in)
        return kv_ttft.run(True, TINY, kv_ttft.Material(folder, TEXTS))


def cutter() -> TextCutter:
    return TextCutter(tokenizer(), TEXTS)


@pytest.mark.bench
def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    has_fused = FUSED in get_args(KvReuse)
    defined = ratio_definitions(found.suite)
    assert set(found.ratios) == {one for one in defined if has_fused or FUSED not in one}
    ways = get_args(KvReuse)
    cold = {ours(way, is_cold=True) for way in ways if way != EXACT}
    disk = {ours(way, is_on_disk=True) for way in ways if way != EXACT}
    others = {PLAIN, CACHEBLEND, f"{ours(EXACT)} / {ours(FUSED)}", *kvboost.ENGINES}
    assert {row.system for row in found.rows} == {*map(ours, ways), *cold, *disk, *others}
    rates = [row.system for row in found.rows if row.metric == "requests_per_s"]
    assert rates == [*map(ours, ways)]


@pytest.mark.bench
def test_what_is_never_slower_is_the_worst_length(found: SuiteResult) -> None:
    gains = [row.median for row in found.rows if row.metric == "ratio"]
    assert len(gains) == len(TINY.auto_tokens)
    assert found.ratios["auto_never_slower"] == min(gains)


@pytest.mark.bench
def test_in_float32_exact_answers_are_those_of_the_frameworks_own_model(
    found: SuiteResult,
) -> None:
    rows = [
        row
        for row in found.rows
        if row.system == ours(EXACT) and row.metric == "first_tokens_equal_to_plain"
    ]
    swapped = [row for row in rows if "texts of" not in row.workload]
    assert len(swapped) == 2
    assert all(row.median == row.n == 1 for row in swapped)


def test_the_second_order_of_known_texts_computes_no_text() -> None:
    model = tiny_chat.model()
    turns = Turns(cutter(), 3, 40)
    with bench_accelerator(threads=1) as accelerator:
        arm = first_token.our_arm(model, tokenizer(), REUSE, accelerator)
        for turn in range(2):
            arm(turns.again(turn))
        before = reused(accelerator)
        arm(turns.again(2))
        known = reused(accelerator) - before
        arm(turns.new(3))
        new = reused(accelerator) - before - known
    chunks = turns.again(2).segmented(tokenizer()).chunks
    assert known == sum(len(one.ids) for one in chunks)
    assert new == 0


def test_texts_that_memory_does_not_keep_are_read_from_files(tmp_path: Path) -> None:
    turns = Turns(cutter(), 3, 40)
    bounds = {"kv_folder": str(tmp_path / "kept"), "chunk_bytes": 0}
    for turn in range(2):  # the first accelerator writes files, the second finds them
        with bench_accelerator(threads=1) as accelerator:
            arm = first_token.our_arm(tiny_chat.model(), tokenizer(), REUSE, accelerator, **bounds)
            arm(turns.again(turn))
            found = reused(accelerator)
    assert found == sum(len(one.ids) for one in turns.again(1).segmented(tokenizer()).chunks)


@pytest.mark.parametrize("arms_of", [swap_in.langchain_arms, swap_in.llama_index_arms])
def test_swapped_models_reuse_what_a_search_found(folder: str, arms_of: Any) -> None:
    texts = [cutter().text(30), TEXTS[1], TEXTS[2]]
    with bench_accelerator() as accelerator:
        ask = arms_of(folder, texts, accelerator)[ours(REUSE)]
        ask("1: What?")
        before = reused(accelerator)
        ask("2: What?")
        tokens = sum(len(tokenizer()(one, add_special_tokens=False)["input_ids"]) for one in texts)
        assert reused(accelerator) - before == tokens


def reused(accelerator: Any) -> int:
    engines = accelerator.metrics.snapshot()["engines"].values()
    return sum(one.get("prompt_tokens_from_chunks", 0) for one in engines)


def test_each_turn_has_the_texts_in_an_order_of_its_own() -> None:
    turns = Turns(cutter(), 3, 40)
    orders = {turns.again(turn).texts for turn in range(20)}
    assert len(orders) == 6
    assert all(set(one) == set(turns.known) for one in orders)


def test_new_texts_are_in_no_other_prompt() -> None:
    turns = Turns(TextCutter(tokenizer(), [f"Text {at}" for at in range(999)]), 3, 20)
    first, second = turns.new(1), turns.new(2)
    assert len({*turns.known, *first.texts, *second.texts}) == 9


def test_gains_are_against_the_faster_full_prefill() -> None:
    times = {PLAIN: [4.0, 8.0, 6.0], ours(EXACT): [3.0, 6.0, 9.0], ours(REUSE): [1.0, 3.0, 3.0]}
    firsts = {name: [First(one, "a") for one in each] for name, each in times.items()}
    assert FirstTokens("3 turns", firsts).opponent in (PLAIN, ours(EXACT))
    firsts[PLAIN] = [First(9.0, "a")] * 3
    found = FirstTokens("3 turns", firsts)
    assert found.opponent == ours(EXACT)
    assert found.gain(ours(REUSE)) == 3.0


def test_a_first_token_is_compared_with_plains() -> None:
    firsts = {
        PLAIN: [First(1.0, "a"), First(1.0, "b")],
        ours(EXACT): [First(1.0, "a"), First(1.0, "c")],
    }
    (row,) = [row for row in FirstTokens("2 turns", firsts).rows() if "equal" in row.metric]
    assert (row.system, row.median, row.n) == (ours(EXACT), 1, 2)


def test_a_length_compares_both_arms_turn_by_turn() -> None:
    length = Length("2 texts", Pairs((4.0, 6.0, 9.0), (2.0, 6.0, 3.0)))
    assert length.gain == 2.0
    ratio = [row for row in length.rows() if row.metric == "ratio"]
    assert [(row.median, row.n) for row in ratio] == [(2.0, 3)]


def test_shorter_prompts_have_more_turns_up_to_four_times_as_many() -> None:
    found = break_even.measure(tiny_chat.model(), tokenizer(), TEXTS, 2, (20, 40, 160), 1)
    assert [len(one.seconds.plain) for one in found] == [4, 4, 1]
    assert [one.workload for one in found] == [
        *("2 texts, 20 tokens", "2 texts, 40 tokens", "2 texts, 160 tokens")
    ]


def test_a_kvboost_that_is_told_the_texts_finds_them_in_any_order(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvboost, "ENVIRONMENT", Path(sys.executable))
    monkeypatch.setattr(kvboost, "SCRIPT", stand_in)
    result = kvboost.measure(tiny_chat.model(), tokenizer(), TEXTS, 3, 40, 3)
    told = "kvboost, told the texts"
    (share,) = [row for row in result.rows if (row.system, row.metric) == (told, "reused_share")]
    assert share.median > 0.6  # all but the question
    (mine,) = [row for row in result.rows if row.system == ours(REUSE)]
    assert result.ratio == pytest.approx(mine.median / 1000 / 2.0)  # the faster of its engines


def test_pieces_follow_each_other_and_a_text_is_the_same_piece_in_any_place() -> None:
    prompts = Turns(cutter(), 3, 40)
    segmented = [prompts.again(turn).segmented(tokenizer()) for turn in range(6)]
    cut = [kvboost.pieces(one) for one in segmented]
    for each in cut:
        assert each[0][0] == 0
        assert [end for _, end in each[:-1]] == [start for start, _ in each[1:]]
    texts = {
        one.ids[start:end]
        for one, each in zip(segmented, cut, strict=True)
        for start, end in each[1:]
    }
    assert len(texts) == 3


def test_a_missing_kvboost_is_named_and_has_no_ratio(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kvboost, "ENVIRONMENT", tmp_path / "python")
    result = kvboost.measure(tiny_chat.model(), tokenizer(), TEXTS, 2, 20, 1)
    assert result.ratio is None
    (row,) = result.rows
    assert (row.system, row.metric) == (kvboost.NAME, "missing")
    assert "make peers" in row.workload
