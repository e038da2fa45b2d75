"""Read what explain() says about a workflow, and what the workflow becomes.

Needs: pip install rag-accel                Run: python cookbook/02_read_an_explain.py
"""

from dataclasses import replace

from rag_accel import END, START, Accelerator, GraphError, RAGraph
from rag_accel.testing import FAKE_PROFILE, FakeEngine


def llm(prompt):
    """Answer with the first passage in the prompt; stands for any function that asks a model."""
    return next((line for line in prompt.splitlines() if line.startswith("[1]")), "A passage.")


def index(query, k):
    """Find the same passages for every query; stands for any function that searches."""
    return ["The bridge opened in 1932.", "The ferry takes nine minutes."][:k]


def stand_in(*kinds):
    """Return an owned engine that computes nothing real but executes these kinds."""
    able = frozenset(kind for kind in FAKE_PROFILE.kinds if kind in kinds)
    return FakeEngine(replace(FAKE_PROFILE, kinds=able))


def build_graph():
    """Return a workflow that guesses a passage first and searches with that (HyDE)."""
    graph = RAGraph()
    graph.add_generation("guess", prompt="A passage that answers {input}", output="passage")
    graph.add_retrieval("search", query="passage", top_k=2, output="docs")
    graph.add_generation("answer", prompt="{docs}\n\nAnswer: {input}")
    graph.add_edge(START, "guess").add_edge("guess", "search")
    return graph.add_edge("search", "answer").add_edge("answer", END)


def main():
    """Explain one workflow with borrowed and with owned engines, run it, and break it."""
    graph = build_graph()

    print("1. As written. One line a stage:")
    print("   name: kind@engine(what it reads) -> what it writes  after what it waits for\n")
    with Accelerator(llm=llm, index=index) as accelerator:
        print(accelerator.explain(graph))
        # Both engines are your own functions, so both are borrowed: a call is admitted and then
        # runs where its caller is, any number at once.
        print("\nIts answer:", accelerator.run(graph, input="When did the bridge open?"))

        print("\n2. Lowered to primitives. `depth` is the longest way still to go; of one request")
        print("   the deepest primitives enter a batch first. Borrowed: one primitive a stage.\n")
        print(accelerator.explain(graph, "p-graph"))

    # Owned engines are stepped by the scheduler, so more is known about them. The plan is the one
    # that real engines of these kinds get.
    owned = {
        "llm": stand_in("PREFILLING", "DECODING"),
        "embedder": stand_in("EMBEDDING"),
        "index": stand_in("SEARCHING"),
    }
    with Accelerator(**owned) as accelerator:
        print("\n3. The same on owned engines: embedding and searching, prefilling and decoding")
        print("   became primitives of their own, and each can share a batch with others.\n")
        print(accelerator.explain(graph, "p-graph"))

        print("\n4. A workflow that cannot run says everything that is wrong with it at once:\n")
        graph.add_rerank("order", documents="papers", engine="judge")
        try:
            accelerator.run(graph, input="When did the bridge open?")
        except GraphError as error:
            print(error)


if __name__ == "__main__":
    main()
