"""Use the core alone, with numpy and no framework; ``user_snippet.py`` does so too."""

from __future__ import annotations

from typing import assert_type

from rag_accel import (
    END,
    START,
    Accelerator,
    ConfigError,
    Options,
    RagAccelError,
    RAGraph,
)


def run_graph() -> None:
    """Run a small workflow on functions, and fail if its answer is not theirs."""

    def search(query: str, k: int) -> list[str]:
        return [f"A passage about {query}."][:k]

    graph = RAGraph().add_retrieval("search", top_k=1, output="docs")
    graph.add_generation("answer", prompt="{docs} {input}")
    graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    with Accelerator(llm=str.upper, index=search, strict=True) as accelerator:
        assert_type(accelerator.explain(graph), str)
        assert "A PASSAGE ABOUT TEA." in accelerator.run(graph, input="tea")
        assert "".join(accelerator.stream(graph, input="tea"))


def misspelt_option() -> RagAccelError:
    """Return the error that a misspelt option leads to."""
    try:
        # Type checkers know the options, so that this is an error there, too.
        Options.load(max_bach=32)  # pyright: ignore[reportCallIssue]
    except ConfigError as error:
        assert_type(error.code, str)
        return error
    raise AssertionError("a misspelt option was accepted")


if __name__ == "__main__":
    run_graph()
    assert misspelt_option().code == "RA100"
    print("ok")
