"""The workflows that search and generate in rounds, a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rag_accel.graph.nodes import END
from rag_accel.graph.ragraph import RAGraph
from rag_accel.workflows import prompts, steps
from rag_accel.workflows.history import AnswerWriter, started, with_history


def multistep(
    *,
    decompose_prompt: str = prompts.DECOMPOSE,
    step_prompt: str = prompts.ANSWER_STEP,
    prompt: str = prompts.ANSWER_FROM_NOTES,
    max_questions: int = 3,
    is_done: Callable[[Sequence[str]], bool] | None = None,
    top_k: int = 2,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    planner: str | None = None,
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return the workflow that splits a question and answers part by part.

    HedraRAG section 6, Multistep. One round is a search for the next simpler question and its
    answer; rounds go on until all are answered, and the notes of all rounds give the answer. The
    rounds are a loop, so ``max_questions`` may not exceed the option ``max_loops``.

    Differs: the paper's Listing 1 ends with the answer to the last simpler question.

    Args:
        decompose_prompt: of ``input``; the questions come one a line, or as a list in JSON.
            ``{count}`` in it is replaced by ``max_questions``. A plan without any leaves the
            question itself.
        step_prompt: of ``docs``, ``question``, ``notes`` and ``input``.
        prompt: of ``notes`` and ``input``.
        max_questions: most rounds.
        is_done: called with the notes after a round; True leaves the other questions out.
        top_k: documents to find in a round.
        max_tokens: most tokens of each answer.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.
        planner: the engine that splits the question; by default ``llm``.

    Raises:
        ConfigError: if ``max_questions`` is below 1.
    """
    steps.require_count("max_questions", max_questions)
    plan = decompose_prompt.replace("{count}", str(max_questions))
    graph, start = started(history)
    graph.add_generation(
        "decompose", prompt=with_history(plan, history), output="plan", engine=planner or llm
    )
    questions = steps.Questions(max_questions)
    graph.add_function("questions", questions, inputs=["plan", "input"])
    graph.add_function("begin", steps.no_notes, inputs=(), output="notes")
    picked = ["questions", "notes"]
    graph.add_function("pick", steps.next_question, inputs=picked, output="question")
    graph.add_retrieval(
        "search", query="question", top_k=top_k, output="docs", engine=index, embedder=embedder
    )
    answers = AnswerWriter(graph, llm, max_tokens, history)
    answers.add("step", step_prompt, "reply")
    graph.add_function("note", steps.noted, inputs=["notes", "question", "reply"], output="notes")
    answers.add("answer", prompt)
    graph.add_edge(start, ["decompose", "begin"]).add_edge("decompose", "questions")
    graph.add_edge(["questions", "begin"], "pick").add_edge("pick", "search")
    graph.add_edge("search", "step").add_edge("step", "note")
    more = steps.MoreQuestions("pick", "answer", is_done)
    graph.add_edge("note", more, targets=["pick", "answer"])
    return graph.add_edge("answer", END)


def irg(
    *,
    prompt: str = prompts.ANSWER,
    rounds: int = 2,
    top_k: int = 5,
    max_tokens: int | None = None,
    history: bool = False,
    llm: str = "llm",
    index: str = "index",
    embedder: str = "embedder",
) -> RAGraph:
    """Return iterative retrieval-generation (HedraRAG section 6, IRG; Iter-RetGen).

    Each round searches with the question and the answer of the round before, and answers again from
    what it finds. The number of rounds is known, so the graph is a chain: no condition is waited
    for, and the scheduler knows from the start how far each request has to go. A Retrieval reads
    one value, so question and answer are joined by a Function.

    Args:
        prompt: of ``docs`` and ``input``.
        rounds: searches, and answers; 1 is ``one_shot``.
        top_k: documents to find in a round.
        max_tokens: most tokens of each answer.
        history: as in ``one_shot``.
        llm, index, embedder: names of engines.

    Raises:
        ConfigError: if ``rounds`` is below 1.
    """
    steps.require_count("rounds", rounds)
    graph, start = started(history)
    answers = AnswerWriter(graph, llm, max_tokens, history)
    before = start
    for number in range(1, rounds + 1):
        search, answer = f"search{number}", f"answer{number}"
        query = "input"
        if number > 1:
            probe, query = f"probe{number}", "query"
            graph.add_function(probe, steps.joined, inputs=["input", "answer"], output=query)
            graph.add_edge(before, probe)
            before = probe
        graph.add_retrieval(
            search, query=query, top_k=top_k, output="docs", engine=index, embedder=embedder
        )
        answers.add(answer, prompt, "answer")
        graph.add_edge(before, search).add_edge(search, answer)
        before = answer
    return graph.add_edge(before, END)
