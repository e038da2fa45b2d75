"""Passes that overlap work of one request run by default where they are expected to gain."""

from dataclasses import replace

import pytest

from rag_accel.engine_api import Capability, EngineProfile, LatencyModel, PrimitiveKind
from rag_accel.errors import ConfigError
from rag_accel.graph import END, START, RAGraph
from rag_accel.passes import manager
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.explanation import explain_graph
from rag_accel.passes.manager import Pass, passes_estimated, passes_named, run_passes
from rag_accel.workflows import advanced_document_qa

EMBED_S, SEARCH_S, BASE_S, RERANK_S = 0.003, 0.0005, 0.018, 0.01
TOP_K = 16
HERE = {"max_threads": 2, "pure": True}
SERVER = EngineProfile(
    frozenset({PrimitiveKind.DECODING}),
    max_threads=0,
    capabilities=frozenset({Capability.STREAM}),
)
ENGINES = {
    "llm": SERVER,
    "embedder": EngineProfile(
        frozenset({PrimitiveKind.EMBEDDING}), latency=LatencyModel(0.004, EMBED_S), **HERE
    ),
    "index": EngineProfile(
        frozenset({PrimitiveKind.SEARCHING}), latency=LatencyModel(0.0002, SEARCH_S), **HERE
    ),
    "reranker": EngineProfile(
        frozenset({PrimitiveKind.RERANKING}),
        max_batch=32,
        latency=LatencyModel(BASE_S, RERANK_S),
        capabilities=frozenset({Capability.ITEMWISE}),
        **HERE,
    ),
}
DEFAULT = {"enabled": passes_named("default"), "estimated": passes_estimated("default")}


def planned(engines=ENGINES, count=3, **changes):
    """Return the plan of a list of queries, searched one by one and reranked together."""
    graph = advanced_document_qa(num_queries=count, top_k=TOP_K, synthesis="stuff").freeze()
    graph = graph.edit(replace=[replace(graph.by_name["expand"], **changes)])
    return run_passes(decompose(graph, engines), PassContext(engines, **DEFAULT))


def applied(plan):
    return {change.by for change in plan.journal}


def with_engine(name, **changes):
    return {**ENGINES, name: replace(ENGINES[name], **changes)}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_work_on_items_but_the_last_is_saved_beside_a_server(count):
    plan = planned(count=count)
    ranked = (count - 1) * TOP_K * RERANK_S
    others = (count - 1) * (EMBED_S + SEARCH_S)
    slices = pytest.approx(ranked - (count - 1) * BASE_S)
    assert plan.estimates == {
        "rerank_by_source": slices,
        "pipeline_decoding": pytest.approx(ranked + others),
    }
    assert applied(plan) >= plan.estimates.keys()


def test_a_list_of_one_item_saves_nothing():
    plan = planned(count=1)
    assert plan.estimates == {"pipeline_decoding": 0}
    assert "pipeline_decoding" not in applied(plan)


def test_engines_on_the_same_cores_gain_nothing():
    plan = planned(with_engine("llm", max_threads=2))
    assert plan.estimates == {
        "rerank_by_source": pytest.approx(-2 * BASE_S),
        "decompose_stages": pytest.approx(-BASE_S),
        "pipeline_decoding": 0,
    }
    assert not applied(plan) & plan.estimates.keys()
    assert plan.graph == planned(with_engine("llm", capabilities=frozenset())).graph


def test_an_engine_under_two_names_does_not_overlap_with_itself():
    llm = EngineProfile(
        SERVER.kinds | {PrimitiveKind.EMBEDDING, PrimitiveKind.SEARCHING},
        max_threads=0,
        latency=LatencyModel(0.001, 0.001),
        pure=True,
        capabilities=SERVER.capabilities,
    )
    plan = planned({**ENGINES, "llm": llm, "embedder": llm, "index": llm, "reranker": SLOW_LIST})
    assert plan.estimates == {"pipeline_decoding": 0}


SLOW_LIST = replace(ENGINES["reranker"], capabilities=frozenset())


@pytest.mark.parametrize("max_tokens", [None, 30, 1000])
def test_no_more_is_saved_than_the_rest_of_the_list_takes(max_tokens):
    step_s = 0.004
    plan = planned(with_engine("llm", latency=LatencyModel(step_s, 0.0)), max_tokens=max_tokens)
    tokens = min(64, max_tokens or 64)
    assert plan.estimates["pipeline_decoding"] == pytest.approx(step_s * tokens * 2 / 3)
    assert plan.estimates["rerank_by_source"] < planned().estimates["rerank_by_source"]


def test_nothing_is_known_without_the_profiles_of_the_engines_that_would_overlap():
    unknown = {name: replace(profile, latency=LatencyModel()) for name, profile in ENGINES.items()}
    plan = planned(unknown)
    assert plan.estimates == dict.fromkeys(
        ["rerank_by_source", "decompose_stages", "pipeline_decoding"]
    )
    assert not applied(plan) & plan.estimates.keys()


def test_slices_of_searches_that_end_together_only_cost():
    plan = planned(with_engine("llm", capabilities=frozenset()))
    assert plan.estimates["rerank_by_source"] == pytest.approx(-2 * BASE_S)


def test_passes_that_are_named_run_whatever_they_are_expected_to_save():
    engines = with_engine("llm", max_threads=2)
    lowered = decompose(advanced_document_qa().freeze(), engines)
    context = PassContext(engines, enabled=passes_named("pipeline_decoding"))
    plan = run_passes(lowered, context)
    assert applied(plan) == {"pipeline_decoding"}
    assert plan.estimates == {}


@pytest.mark.parametrize("text", ["all", "none", "pipeline_decoding", ""])
def test_only_by_default_are_passes_estimated(text):
    assert passes_estimated(text) == frozenset()
    assert passes_estimated("default ") == DEFAULT["estimated"]


@pytest.mark.parametrize(("saved_s", "acts"), [(0.1, True), (0, False), (-1, False), (None, False)])
def test_a_registered_pass_with_an_estimate_runs_where_that_is_above_zero(
    monkeypatch, saved_s, acts
):
    monkeypatch.setattr(manager, "_registered", [])
    seen = []

    def lose(graph, context):
        return graph.edit(remove=["a.searching"])

    def estimate(before, after, context):
        seen.append((len(before.primitives), len(after.primitives)))
        return saved_s

    manager.register_pass(Pass("lose", lose, estimate))
    assert "lose" not in passes_named("default")
    graph = RAGraph().add_retrieval("a").add_edge(START, "a").add_edge("a", END).freeze()
    engines = {"index": replace(ENGINES["index"], capabilities=frozenset({Capability.EMBEDS}))}
    context = PassContext(engines, enabled=frozenset(), estimated=passes_estimated("default"))
    plan = run_passes(decompose(graph, engines), context)
    assert plan.estimates == {"lose": saved_s}
    assert len(plan.graph.primitives) == (0 if acts else 1)
    assert seen == [(1, 0)]


def test_an_estimated_pass_that_does_not_exist_is_an_option_error():
    with pytest.raises(ConfigError, match="no such pass"):
        run_passes(decompose(RAGraph(), {}), PassContext(enabled=frozenset(), estimated={"no"}))


def told(engines):
    text = explain_graph(
        advanced_document_qa(top_k=TOP_K, synthesis="stuff"),
        engines,
        "e-graph",
        DEFAULT["enabled"],
        estimated=DEFAULT["estimated"],
    )
    names = tuple(f"  {name}: " for name in DEFAULT["estimated"])
    lines = [line.strip() for line in text.split("\n") if line.startswith(names)]
    return [line for line in lines if "saves" in line or "off" in line]


def test_an_explanation_says_what_passes_save_and_which_are_off_and_why():
    assert told(ENGINES) == [
        "rerank_by_source: saves up to about 284 ms where a request is alone; "
        "off where several live",
        "pipeline_decoding: saves up to about 327 ms where a request is alone; "
        "off where several live",
    ]
    assert told(with_engine("llm", max_threads=2)) == [
        "rerank_by_source: off, as it would cost about 36 ms more than it saves",
        "decompose_stages: off, as it would cost about 18 ms more than it saves",
        "pipeline_decoding: off, as no work would overlap",
    ]
    assert told(with_engine("reranker", latency=LatencyModel())) == [
        "rerank_by_source: off, as no profile of its engines tells what it would save",
        "decompose_stages: off, as no profile of its engines tells what it would save",
        "pipeline_decoding: saves up to about 7 ms where a request is alone; "
        "off where several live",
    ]
