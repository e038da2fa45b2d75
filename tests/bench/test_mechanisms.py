"""The suite on mechanisms runs every arm, whose answers are equal, and shares out the gain."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("llama_index.llms.huggingface")


from bench.local_llm.answers import Setting
from bench.suites import mechanisms
from bench.together.arms import ALL, EXACT, EXTRA, NONE, Mechanism, arms, embedders, options
from bench.together.material import Asked
from bench.together.parts import opened
from bench.together.programs import Written
from bench.together.shares import Worth, best_single, shares, worths
from rag_accel.accelerator import Accelerator
from rag_accel.config import Options


def test_the_arms_are_each_mechanism_alone_and_left_out() -> None:
    found = arms()
    assert found["none"] == NONE
    assert found["all"] == ALL == frozenset(EXACT)
    assert {*EXTRA} == {*Mechanism} - ALL == {Mechanism.REUSE, Mechanism.DEVICES}
    for one in EXACT:
        assert found[f"{one} alone"] == {one}
        assert found[f"all without {one}"] == ALL - {one}
    for one in EXTRA:
        assert found[f"all and {one}"] == ALL | {one}
    assert found["device group alone"] == {Mechanism.DEVICES}
    assert found["chunk reuse alone"] == {Mechanism.REUSE, Mechanism.LOCAL_ENGINE}
    assert len(found) == 2 * len(Mechanism) + 2


def test_mechanisms_are_options_of_an_accelerator_and_those_of_all_are_its_defaults() -> None:
    defaults = Options()
    for has in arms().values():
        given = options(has)
        switched = {option for option, value in given.items() if getattr(defaults, option) != value}
        assert switched == given.keys(), "an option that switches nothing"
        assert len(given) == len({*EXACT} - has) + (Mechanism.REUSE in has)
    assert options(ALL) == {} == options(ALL | {Mechanism.DEVICES})
    assert [len(embedders(has)) for has in (ALL, ALL | {Mechanism.DEVICES})] == [0, 2]


def test_the_worst_left_out_is_of_mechanisms_that_are_on_by_default() -> None:
    found = {name: [1.0] for name in arms()}
    found |= {"all and device group": [3.0], "all and chunk reuse": [2.0]}
    found["all without passes"] = [0.8]
    ratios = mechanisms._ratios(found, {name: [1.0] for name in found})
    assert ratios["leave_one_out_worst"] == pytest.approx(1.25)
    assert ratios["leave_one_out_devices"] == pytest.approx(3.0)
    assert ratios["leave_one_out_reuse"] == pytest.approx(2.0)


def test_the_programs_of_all_arms_are_the_same_objects_and_none_has_no_accelerator() -> None:
    asked, program = Asked("?", ""), object()
    made: list[tuple[object, object]] = []

    def accelerate(one: object, accelerator: object) -> str:
        made.append((one, accelerator))
        return "accelerated"

    verbs = SimpleNamespace(accelerate=accelerate)
    written = {"only": Written(program, lambda one, asked: f"{one} {asked.text}", verbs)}
    with opened({"none": NONE, "all": ALL}, lambda: written, Setting(1, 1)) as programs:
        answers = {name: one.ask(("only", asked)) for name, one in programs.items()}
        assert [one.callers(16) for one in programs.values()] == [1, 16]
    assert answers == {"none": f"{program} ?", "all": "accelerated ?"}
    ((given, accelerator),) = made
    assert given is program
    assert isinstance(accelerator, Accelerator)


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
    found |= {Mechanism.BATCHING: Worth(4.0, 1.0), Mechanism.PASSES: Worth(1.0, 0.5)}
    given = shares(found)
    assert given[Mechanism.BATCHING] == pytest.approx(2.0)
    assert given[Mechanism.PASSES] == pytest.approx(-1.0)
    assert math.fsum(given.values()) == pytest.approx(1.0)
    assert set(shares(dict.fromkeys(Mechanism, Worth(1.0, 1.0))).values()) == {0.0}
