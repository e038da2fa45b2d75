import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.errors import GraphError
from rag_accel.graph.order import depths, forward, reachable, topological

NODES = st.integers(min_value=0, max_value=9)


@st.composite
def adjacency(draw):
    pairs = draw(st.lists(st.tuples(NODES, NODES), max_size=30))
    size = draw(st.integers(min_value=1, max_value=10))
    found = {node: [] for node in range(size)}
    for source, target in pairs:
        if source < size and target < size and target not in found[source]:
            found[source].append(target)
    return {node: tuple(targets) for node, targets in found.items()}


def test_reachable_returns_the_roots_and_what_they_lead_to_nearest_first():
    edges = {"a": ("b", "c"), "b": ("d",), "c": (), "d": ("a",), "e": ("a",)}
    assert reachable(edges, ["a"]) == ["a", "b", "c", "d"]


def test_topological_order_keeps_the_given_order_of_unrelated_nodes():
    assert topological({"z": (), "b": ("c",), "a": ("c",), "c": ()}) == ["z", "b", "a", "c"]


def test_topological_order_of_a_cycle_is_an_error_that_names_its_nodes():
    with pytest.raises(GraphError, match="cycle") as caught:
        topological({"a": ("b",), "b": ("a",), "c": ("a",)})
    assert caught.value.found == "a, b"


def test_depth_is_the_longest_remaining_path():
    acyclic = forward({"a": ("b", "c"), "b": ("c",), "c": ("d",), "d": ()})
    assert depths(acyclic) == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_a_weighted_node_counts_all_its_steps_and_is_measured_at_its_first():
    acyclic = forward({"a": ("b",), "b": ("c",), "c": ()})
    assert depths(acyclic, {"b": 2, "c": 3}) == {"a": 5, "b": 4, "c": 2}


def test_a_loop_counts_once():
    acyclic = forward({"a": ("b",), "b": ("c",), "c": ("b", "d"), "d": ()}, ["a"])
    assert acyclic == {"a": ("b",), "b": ("c",), "c": ("d",), "d": ()}
    assert depths(acyclic)["a"] == 3


def test_long_chains_need_no_recursion():
    chain = {node: (node + 1,) for node in range(20_000)} | {20_000: ()}
    assert depths(forward(chain))[0] == 20_000
    assert len(topological(chain)) == 20_001


@given(adjacency())
def test_forward_keeps_every_node_and_lists_it_before_its_successors(edges):
    acyclic = forward(edges, [0])
    rank = {node: place for place, node in enumerate(acyclic)}
    assert set(rank) == set(edges)
    assert all(rank[node] < rank[target] for node in acyclic for target in acyclic[node])
    assert all(set(acyclic[node]) <= set(edges[node]) for node in acyclic)


@given(adjacency())
def test_forward_drops_only_edges_that_lie_on_a_cycle(edges):
    acyclic = forward(edges, [0])
    for node, targets in edges.items():
        for target in set(targets) - set(acyclic[node]):
            assert node in reachable(edges, [target])


@given(adjacency())
def test_depth_falls_along_every_edge_by_one_on_the_longest_path(edges):
    acyclic = forward(edges)
    depth = depths(acyclic)
    for node, targets in acyclic.items():
        assert depth[node] == max((depth[target] + 1 for target in targets), default=0)


@given(adjacency())
def test_topological_order_exists_exactly_for_graphs_without_cycles(edges):
    on_cycle = any(node in reachable(edges, edges[node]) for node in edges)
    if on_cycle:
        with pytest.raises(GraphError):
            topological(edges)
    else:
        order = topological(edges)
        assert sorted(order) == sorted(edges)
        assert all(order.index(a) < order.index(b) for a in edges for b in edges[a])
