"""Each suite of programs says what it costs or gives one caller; the others say why not."""

from __future__ import annotations

import pytest

from bench.loads import lone_ms
from bench.measure import Pairs
from bench.paired import one_user
from bench.results import median_row
from bench.suites import ratio_definitions, suite_names
from rag_accel_demo.load import Load

#: suite -> why it has no ratio of one caller's requests to a program
WITHOUT = {
    "ablation": "both arms are ours, with a mechanism on and off",
    "embedding_concurrency": "calls of an embeddings object; one caller's are embedding_p99_1",
    "embedding_devices": "an embedder of several devices, a part of programs",
    "graph_cache": "a cache of vectors, by counts",
    "graph_fidelity": "how near approximate answers are; nothing is timed",
    "graph_ttft": "first tokens of prompts of trees, an engine's",
    "ingestion": "one call that embeds all documents, a part of programs",
    "kv_fidelity": "how near approximate answers are; nothing is timed",
    "kv_sustained": "a store of states, by counts",
    "kv_ttft": "first tokens of known texts; one user of such programs stands in together, serving",
    "ray": "engines hosted by Ray, and shards of an index",
    "retrieval": "searches of an index, a part of programs",
    "serving_peers": "other engines of language models, which no program is written for",
    "tiers": "searches of an index, a part of programs",
}
#: suites with programs that take less than 2 ms plainly
SHORT = {"overhead", "serve"}


def test_every_suite_of_programs_has_the_ratio_of_one_caller_and_its_bound() -> None:
    definitions = {name: ratio_definitions(name) for name in suite_names()}
    assert {name for name, found in definitions.items() if "one_user" not in found} == set(WITHOUT)
    assert {name for name, found in definitions.items() if "one_user_ms" in found} == SHORT
    for found in definitions.values():
        for ratio, bound in (("one_user", "1.03"), ("one_user_ms", "0.06")):
            if text := found.get(ratio):
                assert text.startswith("against ")
                assert f"accepted: at most {bound})" in text


def test_the_worst_program_counts_and_short_ones_by_their_milliseconds() -> None:
    times = {
        "long": Pairs((100.0, 100.0, 100.0), (90.0, 110.0, 101.0)),
        "gains": Pairs((100.0,), (50.0,)),
        "short": Pairs((1.0, 1.0), (1.25, 1.75)),
        "shorter": Pairs((0.5,), (0.25,)),
    }
    rows, ratios = one_user(times, short={"short", "shorter"})
    assert ratios == {"one_user": pytest.approx(1.01), "one_user_ms": pytest.approx(0.5)}
    assert [row.workload for row in rows[::2]] == list(times)
    assert rows[4:6] == [
        median_row("accelerated / plain", "short", "one_user", [1.25, 1.75]),
        median_row("accelerated - plain", "short", "one_user_ms", [0.25, 0.75]),
    ]


@pytest.mark.parametrize(("short", "name"), [([], "one_user"), (["only"], "one_user_ms")])
def test_a_ratio_without_programs_is_left_out(short: list[str], name: str) -> None:
    _, ratios = one_user({"only": Pairs((1.0,), (1.0,))}, short)
    assert set(ratios) == {name}


def test_requests_of_one_user_are_pairs_by_question_and_turn() -> None:
    plain = Load((), (0.001, 0.002), 1.0), Load((), (0.003, 0.004), 1.0)
    other = Load((), (0.005, 0.006), 1.0), Load((), (0.007, 0.008), 1.0)
    pairs = lone_ms(Pairs(plain, other))
    assert pairs.plain == pytest.approx((1, 2, 3, 4))
    assert pairs.other == pytest.approx((5, 6, 7, 8))
