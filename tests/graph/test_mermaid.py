from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.mermaid import mermaid


def test_the_chart_shows_every_kind_of_stage_and_edge():
    g = RAGraph().add_retrieval("search", output="docs").add_function("clean", len, inputs="docs")
    g.add_generation("answer", "{clean}").add_function("log", print, inputs="input")
    g.add_edge(START, "search").add_edge("search", ["clean", "log"]).add_edge("clean", "answer")
    g.add_edge("answer", lambda values: END, targets=["search", END])
    assert mermaid(g).split("\n") == [
        "flowchart TD",
        "  START([START])",
        '  s0[("search<br/>Retrieval at index")]',
        '  s1[["clean<br/>Function"]]',
        '  s2["answer<br/>Generation at llm"]',
        '  s3[["log<br/>Function"]]',
        '  s4{"answer?"}',
        "  END([END])",
        "  START --> s0",
        '  s0 -->|"docs"| s1',
        '  s1 -->|"clean"| s2',
        "  s0 --> s3",
        '  s2 -->|"answer"| s4',
        "  s4 -.-> s0",
        "  s4 -.-> END",
    ]


def test_a_branch_without_declared_targets_points_to_any_stage():
    chart = mermaid(RAGraph().add_edge(START, lambda values: END))
    assert '  any["any stage or END"]' in chart
    assert chart.endswith("\n  s0 -.-> any")


def test_names_cannot_break_out_of_their_labels():
    chart = mermaid(RAGraph().add_function('a"]; <b>\n&', len))
    assert '  s0[["a#quot;]; #lt;b#gt; &<br/>Function"]]' in chart


def test_edges_to_unknown_stages_are_left_out():
    assert "ghost" not in mermaid(RAGraph().add_function("a", len).add_edge("a", "ghost"))
