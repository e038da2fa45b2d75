"""The suite on first tokens runs all arms, with known and new texts, and defines its ratios."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("llama_index.llms.huggingface")
pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer
from tiny_chat import TEXTS

from bench.kv import kvboost
from bench.kv.break_even import Length
from bench.kv.first_token import (
    EXACT,
    PLAIN,
    REUSE,
    First,
    FirstTokens,
    Turns,
    ours,
)
from bench.measure import Pairs
from rag_accel.fidelity.prompts import TextCutter

pytestmark = pytest.mark.usefixtures("loop_of_the_thread")


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


def cutter() -> TextCutter:
    return TextCutter(tokenizer(), TEXTS)


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
