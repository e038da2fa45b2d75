from hypothesis import given
from hypothesis import strategies as st

from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.stages import Branch
from rag_accel.graph.writers import Clash, _together, clashes_in_graph, clashes_in_region


def paths(edges, source, end):
    if source == end:
        yield {end}
        return
    for target in edges[source]:
        for rest in paths(edges, target, end):
            yield {source} | rest


def pairs_on_disjoint_paths(graph):
    """Return what ``_together`` should, by trying every pair of paths from every fork."""
    edges, found = graph.forward, set()
    forks = [name for name in edges if not isinstance(graph.by_name.get(name), Branch)]
    starts = [(u, v) for fork in forks for u in edges[fork] for v in edges[fork] if u != v]
    for one in graph.by_name:
        for other in graph.by_name:
            if one != other and any(
                left.isdisjoint(right)
                for u, v in starts
                for left in paths(edges, u, one)
                for right in paths(edges, v, other)
            ):
                found.add(frozenset((one, other)))
    return found


@st.composite
def branching_graphs(draw):
    g = RAGraph()
    size = draw(st.integers(min_value=2, max_value=5))
    for index in range(size):
        g.add_function(index, len, output="x")
        earlier = st.sampled_from([START, *range(index)])
        for source in draw(st.lists(earlier, min_size=1, max_size=2)):
            if draw(st.booleans()):
                g.add_edge(source, index)
            else:
                back = draw(st.integers(min_value=0, max_value=size - 1))
                g.add_edge(source, lambda values: END, targets=[index, back])
    return g.freeze()


@given(branching_graphs())
def test_stages_run_together_exactly_when_disjoint_paths_from_a_fork_lead_to_them(graph):
    together = {pair for pair in _together(graph) if END not in pair}
    assert together == pairs_on_disjoint_paths(graph)


def test_a_clash_names_the_output_and_both_writers():
    g = RAGraph().add_function("a", len, output="x").add_function("b", len, output="x")
    graph = g.add_edge(START, ["a", "b"]).freeze()
    assert clashes_in_graph(graph) == [Clash("x", "a", "b")]
    assert clashes_in_region(graph, {"a": (), "b": ()}) == [Clash("x", "a", "b")]
    assert clashes_in_region(graph, {"a": ("b",), "b": ()}) == []
