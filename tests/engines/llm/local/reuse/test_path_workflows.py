"""Graphs whose stages find relation paths, which their prompts compute as trees; and bad input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chunk_prompts import tokens
from fake_runner import finish, tokenizer, value
from graph_texts import PATIENCE_S
from path_graphs import FACTS, OTHER, PROMPT, QUESTION, ask, local, over_graph, walking
from reuse_kit import num_new_tokens
from tiny_models import SIZES, WINDOW
from transformers import MistralConfig, MistralForCausalLM
from tree_prompts import FUJI, LANE, RUNNERS, asked, engine_on, masked_answer

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.cli import main
from rag_accel.engine_api import Document, EngineRequest, PrimitiveKind, PromptUse, StepBudget
from rag_accel.engines import MemoryGraph
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.UncheckedReuseWarning")

PATHS = (
    "guide -> in -> lane",
    "guide -> in -> lane -> holds -> keys",
    "guide -> in -> lane -> holds -> values",
    "guide -> said -> Fuji",
)
TEXT = "The height of Mount Fuji is 3776 metres, said the guide to us."
TURN = "</s>\n<|turn|>assistant\n"
#: of the second question's prompt, where all before the question was computed for the first one
NEW_TOKENS = num_new_tokens(f"\n{OTHER}{TURN}", f"\n{QUESTION}{TURN}")


def over_search(prompt: str = PROMPT) -> RAGraph:
    """Return a graph that puts what a search finds into a prompt."""
    graph = RAGraph().add_retrieval("found", top_k=500)
    graph.add_generation("answer", prompt, max_tokens=6)
    return graph.add_edge(START, "found").add_edge("found", "answer").add_edge("answer", END)


def finding(*texts: str) -> dict[str, Any]:
    documents = [Document(f"text-{at}", text) for at, text in enumerate(texts)]
    return {"index": lambda query, k: documents}


def uses(
    texts: Sequence[str], *questions: str, prompt: str = PROMPT, **options: Any
) -> list[PromptUse]:
    """Return how prompts over these texts are computed, one after the other."""
    with Accelerator(llm=local(**options), **finding(*texts)) as accelerator:
        return [ask(accelerator, over_search(prompt), one)[1] for one in questions or (QUESTION,)]


def exact(texts: Sequence[str], question: str = QUESTION, prompt: str = PROMPT) -> str:
    """Return the answer of a model that computes every prompt."""
    with Accelerator(llm=local(kv_reuse="exact"), **finding(*texts)) as accelerator:
        return ask(accelerator, over_search(prompt), question)[0]


@pytest.mark.parametrize("runner", ["torch", "paged"])
def test_a_second_question_is_all_that_is_computed(runner: str) -> None:
    with walking(local(runner=runner)) as accelerator:
        (first_text, first), (second_text, second) = (
            ask(accelerator, over_graph(), one) for one in (QUESTION, OTHER)
        )
    assert first.from_chunks == 0
    assert second.from_chunks == second.approximate == first.approximate > 0
    assert second.computed == tokens(f"\n{OTHER}{TURN}")
    for question, text in ((QUESTION, first_text), (OTHER, second_text)):
        with walking(local(runner=runner)) as accelerator:
            assert ask(accelerator, over_graph(), question)[0] == text


def test_an_accelerators_own_option_holds_for_a_model_that_names_none() -> None:
    with walking(local(kv_reuse=None), kv_reuse="dependency") as accelerator:
        assert ask(accelerator, over_graph())[1].approximate > 0


# What is found


def test_a_graph_may_be_edited_while_questions_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is that of a mask over the prompt that its question really had."""
    known, works, submit = MemoryGraph(FACTS), list[EngineRequest](), LocalLLMEngine.submit

    def noting(engine: LocalLLMEngine, work: Sequence[EngineRequest]) -> None:
        works.extend(one for one in work if one.kind is PrimitiveKind.DECODING)
        submit(engine, work)

    monkeypatch.setattr(LocalLLMEngine, "submit", noting)
    found: list[str] = []
    with walking(local(), known) as accelerator:
        handles = []
        for at in range(12):
            known.add([("lane", "holds", f"key {at}")])
            handles.append(accelerator.submit(over_graph(), input=f"{QUESTION} {at}"))
            if at % 3 == 2:
                found += [handle.result(PATIENCE_S) for handle in handles[len(found) :]]
                known.remove([("lane", "holds", f"key {at}")])
        _, use = ask(accelerator, over_graph())
    assert use.from_chunks > 0
    for at, text in enumerate(found):
        (work,) = (one for one in works if f"{QUESTION} {at}" in shown(one).splitlines())
        assert text == masked_answer(work), shown(work)
        assert f"lane -> holds -> key {at}" in shown(work)
        assert at < 3 or "holds -> key 2" not in shown(work)


def shown(work: EngineRequest) -> str:
    return work.payload.messages[-1].content


@pytest.mark.parametrize("texts", [(), ("",), (TEXT,), (PATHS[0],), (PATHS[0], "lane -> is -> it")])
def test_what_shares_no_beginning_is_computed_exactly(texts: Sequence[str]) -> None:
    first, second = uses(texts, QUESTION, OTHER)
    assert first.is_exact
    assert second.is_exact
    with Accelerator(llm=local(), **finding(*texts)) as accelerator:
        assert ask(accelerator, over_search())[0] == exact(texts)


def test_lines_that_no_retriever_found_stay_flat() -> None:
    prompt = "Facts:\n{}\n{{found}}\n\n{{input}}".format("\n".join(PATHS))
    assert all(use.is_exact for use in uses([TEXT], QUESTION, OTHER, prompt=prompt))
    with Accelerator(llm=local(), **finding(TEXT)) as accelerator:
        assert ask(accelerator, over_search(prompt))[0] == exact([TEXT], prompt=prompt)


def test_a_path_that_is_found_twice_is_one_of_the_tree() -> None:
    (once,) = uses(PATHS)
    (twice,) = uses([*PATHS, *PATHS])
    assert twice.approximate == once.approximate
    _, again = uses([*PATHS, *PATHS], QUESTION, OTHER)
    assert again.from_chunks == again.approximate


@pytest.mark.parametrize("order", [(TEXT, *PATHS), (*PATHS, TEXT), (*PATHS[:2], TEXT, *PATHS[2:])])
def test_documents_beside_paths_are_computed_once(order: Sequence[str]) -> None:
    first, second = uses(order, QUESTION, OTHER)
    assert first.approximate > 0
    assert second.from_chunks == second.approximate == first.approximate
    assert second.computed == NEW_TOKENS
    beside = [text for text in order if text == TEXT]
    beside += PATHS[2:] if order[2] == TEXT else []
    assert first.documents == second.documents == tokens(*beside)


def test_of_two_runs_of_lines_the_longer_one_is_a_tree() -> None:
    prompt = "Facts:\n{found}\n\nAnd again:\n{found}\n\n{input}"
    first, second = uses(PATHS, QUESTION, OTHER, prompt=prompt)
    (alone,) = uses(PATHS)
    assert first.approximate == alone.approximate
    assert second.from_chunks == second.approximate
    assert second.computed == NEW_TOKENS  # none of the other run


def test_a_graph_with_two_stages_reuses_texts_and_paths() -> None:
    graph = RAGraph().add_retrieval("texts", top_k=5)
    graph.add_graph_retrieval("found", link="words", hops=2, top_k=50)
    graph.add_generation("answer", f"{{texts}}\n\n{PROMPT}", max_tokens=6)
    for stage in ("texts", "found"):
        graph.add_edge(START, stage).add_edge(stage, "answer")
    graph.add_edge("answer", END)
    llm = local(kv_reuse="full+dependency", reuse_always=True)
    with walking(llm, **finding(TEXT, "Lanes hold keys and values.")) as accelerator:
        (_, new), (_, seen) = (ask(accelerator, graph, one) for one in (QUESTION, OTHER))
    assert new.from_chunks == 0
    assert new.approximate > new.tree > 0
    assert (seen.from_chunks, seen.from_tree) == (new.approximate, new.tree)


# Bad input


@pytest.mark.parametrize("both", [("full", "dependency"), "dependency+full", "exact+dependency"])
def test_other_ways_of_reuse_in_one_prompt_are_refused(both: Any) -> None:
    with pytest.raises(ConfigError, match=r"fused\+dependency"):
        local(kv_reuse=both)
    with pytest.raises(ConfigError, match="kv_reuse"):
        Accelerator(kv_reuse=both)


@pytest.mark.parametrize("runner", ["torch", "paged"])
def test_a_model_with_a_window_is_refused_when_it_is_loaded(runner: str) -> None:
    sizes = {**SIZES, "vocab_size": len(tokenizer())}
    windowed = MistralForCausalLM(MistralConfig(**sizes, sliding_window=WINDOW)).eval()
    with pytest.raises(ConfigError, match="sliding window"):
        Accelerator(llm=local(model=windowed, runner=runner), **finding())


@pytest.mark.parametrize("runner", ["torch", "paged"])
def test_paths_beside_those_of_a_folder_are_computed_behind_them(
    runner: str, tmp_path: Path
) -> None:
    """What stands before the paths is in no lane after a restart."""
    folder = str(tmp_path / "kept")
    uses(PATHS[:2], kv_folder=folder, runner=runner)
    with Accelerator(llm=local(runner=runner), **finding(*PATHS)) as accelerator:
        text, _ = ask(accelerator, over_search())
    llm = local(kv_folder=folder, runner=runner)
    with Accelerator(llm=llm, **finding(*PATHS)) as accelerator:
        found, use = ask(accelerator, over_search())
    assert found == text
    assert 0 < use.from_chunks < use.approximate


def test_tenants_over_one_folder_share_no_node(tmp_path: Path) -> None:
    used: list[int] = []
    for namespace in ("one", "two", "one", "two"):
        llm = local(kv_folder=str(tmp_path / "kept"))
        with walking(llm, namespace=namespace) as accelerator:
            used.append(ask(accelerator, over_graph())[1].from_chunks)
    assert used[:2] == [0, 0]
    assert used[2] == used[3] > 0


PURGED = {
    PATHS[0]: (" lane", "\n", " -> holds ->", " keys", "\n", " values", "\n"),
    PATHS[-1]: (" Fuji", "\n"),
}


@pytest.mark.parametrize("path", PURGED)
def test_a_purged_path_goes_with_what_is_behind_it(tmp_path: Path, path: str) -> None:
    """What other paths begin with stays."""
    folder = str(tmp_path / "kept")
    (first,) = uses(PATHS, kv_folder=folder)
    assert main(["cache", "purge", folder, "--text", path]) == 0
    (use,) = uses(PATHS, kv_folder=folder)
    assert use.from_chunks == first.approximate - tokens(*PURGED[path])


@pytest.mark.parametrize("path", PURGED)
def test_a_purged_path_is_in_no_memory_of_a_program_that_runs(tmp_path: Path, path: str) -> None:
    folder = str(tmp_path / "kept")
    with Accelerator(llm=local(kv_folder=folder), **finding(*PATHS)) as accelerator:
        text, first = ask(accelerator, over_search())
        assert main(["cache", "purge", folder, "--text", path]) == 0
        found, use = ask(accelerator, over_search())
    assert found == text
    # What was not written yet when the folder was purged may go, too.
    assert use.from_chunks <= first.approximate - tokens(*PURGED[path])


def test_a_recipe_of_texts_says_nothing_of_paths(tmp_path: Path) -> None:
    named = {"kv_folder": str(tmp_path / "kept"), "kv_recipe": "neighbours", "recompute_ratio": 0.5}
    first, again = (uses(PATHS, **named)[0] for _ in range(2))
    assert first.from_chunks == 0
    assert again.from_chunks == again.approximate
    assert again.recomputed == again.preprocessed == 0


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_interrupt_behind_each_forward_changes_no_answer(runner: str) -> None:
    engine = engine_on(runner)
    run = engine._running._run  # type: ignore[attr-defined]

    def interrupted(rows: Any) -> Any:
        engine.interrupt()
        return run(rows)

    engine._running._run = interrupted  # type: ignore[attr-defined]
    given = (FUJI, LANE, FUJI[:2] + LANE[1:], LANE + FUJI)
    works = [asked(str(at), *given[at % 4], question=f"\n\n{at}?") for at in range(16)]
    engine.submit(works)
    left = works[1::2]
    engine.step(StepBudget(threads=1))
    engine.cancel([work.id for work in works[::2]])
    outputs = finish(engine, *(str(work.id) for work in left))
    assert [value(outputs, str(work.id)).text for work in left] == list(map(masked_answer, left))
    engine.close()
    assert engine.held_bytes == 0
