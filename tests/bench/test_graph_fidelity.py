"""The suite on fidelity of trees trains its reader once, and measures what engines really do."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

import tiny_chat
import torch
from fake_runner import tokenizer

from bench.graph import reader
from bench.graph.reader import Recipe, graph_names, reader_folder, reader_tokenizer, tuned_folder
from bench.graph.reading import (
    ENGINE,
    FLAT,
    PREORDER,
    SHARED,
    GraphPrompt,
    divergences,
    engine_row,
    library_prompts,
    match_rows,
)
from bench.graph.reused_nodes import ANEW, REUSED, UNMOVED, depcache_rows
from bench.results import SuiteResult, as_json, from_json
from bench.suites import graph_fidelity, ratio_definitions
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning import (
    GraphQuestions,
    GraphShape,
    TuningOptions,
    generate_questions,
)
from rag_accel.fidelity.tuning.packing import IGNORED, PromptPacker
from rag_accel.fidelity.tuning.training import answer_logits

RECIPE = Recipe(
    entities=12,
    relations=3,
    stages=((1, 2, 2, 2),),
    enough=(2.0,),  # never: all steps are trained
    most_steps=4,
    settling=1,
    tokens=60,
    questions=4,
)
OPTIONS = TuningOptions(steps=2, batch=1, shape=GraphShape(1, 2, 2, 2), held_out=1)
TINY = graph_fidelity.Sizes(
    subgraphs=(1, 2),
    hops=(2, 2),
    graphs=2,
    questions=2,
    engine_graphs=1,
    prompts=2,
    heads=1,
    paths=2,
    answer=3,
)
TRIPLES = [
    *((f"{name}", "has", f"part of {name}") for name in ("Fuji", "Crane", "Lane")),
    *((f"part of {name}", "is", kind) for name in ("Fuji", "Crane", "Lane") for kind in "xyz"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reader_folder(RECIPE, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def material(folder: Path) -> graph_fidelity.Material:
    model, own = load_source(folder)
    chat = (tiny_chat.model(), tokenizer())
    return graph_fidelity.Material(model, model, own, graph_names(RECIPE), chat)


def graphs(count: int) -> Iterator[GraphQuestions]:
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield generate_questions(graph_names(RECIPE), GraphShape(2, 2, 2, 4), rng)


# The reader --------------------------------------------------------------------------------------


@pytest.mark.timeout(600)  # it trains in bfloat16, which some processors only imitate
def test_a_reader_is_trained_once_and_to_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = load_source(folder)
    second, _ = load_source(reader_folder(RECIPE, tmp_path))
    assert all(
        torch.equal(one, other)
        for one, other in zip(first.parameters(), second.parameters(), strict=True)
    )
    monkeypatch.delattr(reader, "train_reader")
    assert reader_folder(RECIPE, folder.parent) == folder


class Stopped(Exception):
    """The training is to end here."""


def stop_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the training end in the step behind so many; return the shares of those it trains."""
    trained: list[float] = []
    step = reader._Training._step  # pyright: ignore[reportPrivateUsage]

    def counted(self: object, *given: object) -> float:
        if len(trained) == steps:
            raise Stopped
        trained.append(step(self, *given))  # type: ignore[arg-type]
        return trained[-1]

    monkeypatch.setattr(reader._Training, "_step", counted)  # pyright: ignore[reportPrivateUsage]
    return trained


@pytest.mark.parametrize(
    ("before", "left"),
    [(1, 5), (3, 3), (4, 1)],
    ids=["before a checkpoint", "in a stage", "while it settles"],
)
def test_a_stopped_reader_is_trained_on_to_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, left: int
) -> None:
    monkeypatch.setattr(reader, "CHECKPOINT_EVERY", 2)
    with monkeypatch.context() as patched:
        stop_after(before, patched)
        with pytest.raises(Stopped):
            reader_folder(RECIPE, tmp_path)
    trained = stop_after(99, monkeypatch)
    made = reader_folder(RECIPE, tmp_path)
    assert len(trained) == left
    whole, continued = (load_source(path)[0].state_dict() for path in (folder, made))
    assert all(torch.equal(weights, continued[name]) for name, weights in whole.items())
    assert [path for path in tmp_path.iterdir() if path.suffix == ".pt"] == []


def test_a_damaged_checkpoint_of_a_reader_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHECKPOINT_EVERY", 1)
    with monkeypatch.context() as patched:
        stop_after(1, patched)
        with pytest.raises(Stopped):
            reader_folder(RECIPE, tmp_path)
    (state,) = tmp_path.glob("*.pt")
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="remove the file") as raised:
        reader_folder(RECIPE, tmp_path)
    assert str(state) in str(raised.value)


def test_another_recipe_is_another_reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Recipe] = []

    class Trained(Exception):
        pass

    def train(recipe: Recipe, state: object) -> None:
        trained.append(recipe)
        raise Trained

    monkeypatch.setattr(reader, "train_reader", train)
    with pytest.raises(Trained):
        reader_folder(replace(RECIPE, seed=1), folder.parent)
    assert [recipe.seed for recipe in trained] == [1]


def test_the_real_reader_has_the_size_that_is_said() -> None:
    assert 3.1e6 < sum(one.numel() for one in reader._fresh_model(Recipe()).parameters()) < 3.3e6  # pyright: ignore[reportPrivateUsage]


def test_a_name_is_a_token_in_text_and_in_paths() -> None:
    own = reader_tokenizer(RECIPE)
    pieces = ("e1", " -> r2 ->", " e3", " -> s0 ->", " e11", "\n")
    alone = [own(piece, add_special_tokens=False)["input_ids"] for piece in pieces]
    assert [len(ids) for ids in alone] == [1] * len(pieces)
    whole = own("".join(pieces), add_special_tokens=False)["input_ids"]
    assert whole == [ids[0] for ids in alone]
    assert own.unk_token_id not in whole


def test_attention_is_supervised_where_the_answer_is() -> None:
    packer = PromptPacker(reader_tokenizer(RECIPE), layout="flat")
    packed = reader.batch_of([packer.pack(prompt) for prompt in graphs(2)])
    size = packed.ids.shape[1]
    rows = packed.labels != IGNORED
    perfect = torch.zeros(len(packed.ids), 1, size, size)
    for prompt, asked in rows.nonzero().tolist():
        leads = [
            at
            for at in range(4, size)
            if packed.ids[prompt, [at - 4, at - 3, at - 1]].tolist()
            == packed.ids[prompt, [asked, asked - 3, asked - 2]].tolist()
        ]
        assert len(leads) == 1
        assert packed.ids[prompt, leads[0]] == packed.labels[prompt, asked]
        perfect[prompt, 0, asked, [leads[0], asked - 2, asked - 3]] = 1
        perfect[prompt, 0, leads[0], [leads[0] - 4, leads[0] - 1, leads[0] - 3]] = 1
    attended = reader._attended([perfect] * 4, packed)  # pyright: ignore[reportPrivateUsage]
    assert abs(float(attended)) < 1e-4
    assert float(reader._attended([perfect * 0] * 4, packed)) < -10  # pyright: ignore[reportPrivateUsage]


def test_a_reader_is_tuned_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = tuned_folder(folder, RECIPE, OPTIONS, folder.parent)
    before, _ = load_source(folder)
    after, _ = load_source(tuned)
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    monkeypatch.setattr("rag_accel.fidelity.tuning.training.Trainer.train", None)
    assert tuned_folder(folder, RECIPE, OPTIONS, folder.parent) == tuned


def _as_said(
    material: graph_fidelity.Material, prompt: GraphQuestions, packer: PromptPacker
) -> GraphQuestions:
    """Return a prompt whose right answers are the entities that a reader finds most probable."""
    with torch.no_grad():
        logits = answer_logits(material.model, reader.batch_of([packer.pack(prompt)]))
    entities = material.tokenizer.convert_tokens_to_ids(list(material.names.entities))
    said = [material.names.entities[at] for at in logits[:, entities].argmax(-1).tolist()]
    pairs = zip(prompt.questions, said, strict=True)
    return replace(prompt, questions=tuple((text, name) for (text, _), name in pairs))


# What is measured --------------------------------------------------------------------------------


def test_the_engine_says_what_the_mask_of_shared_positions_says(
    material: graph_fidelity.Material,
) -> None:
    packer = PromptPacker(material.tokenizer)
    asked = [_as_said(material, prompt, packer) for prompt in graphs(4)]
    rows = match_rows(material.model, material.tuned, material.tokenizer, asked, "w")
    found = engine_row(material.model, material.tokenizer, asked, 1, "w")
    by_mask = {row.system: row.median for row in rows}
    assert (found.median, found.n) == (by_mask[SHARED], 16)
    assert found.median > 0  # of the names of which the answer was chosen, most are entities


def test_depcache_that_keeps_nothing_says_what_the_mask_in_pre_order_says(
    material: graph_fidelity.Material,
) -> None:
    packer = PromptPacker(material.tokenizer, scheme="preorder")
    asked = [_as_said(material, prompt, packer) for prompt in graphs(4)]
    mask = match_rows(material.model, material.tuned, material.tokenizer, asked, "w")
    by_mask = {row.system: row.median for row in mask}
    rows = depcache_rows(material.model, material.tokenizer, asked, 1, "w")
    found = {row.system: row.median for row in rows}
    assert all(row.n == 16 for row in rows)
    assert found[ANEW] == by_mask[PREORDER] > 0
    assert set(found) == {ANEW, REUSED, UNMOVED}


def test_depcache_of_other_weights_answers_apart_once_paths_are_kept(
    material: graph_fidelity.Material,
) -> None:
    packer = PromptPacker(material.tokenizer, scheme="preorder")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = copy.deepcopy(material.model)
        for weights in drawn.model.layers.parameters():
            if weights.dim() == 2:
                torch.nn.init.normal_(weights, std=2 * weights.shape[1] ** -0.5)
    strong = replace(material, model=drawn)
    asked = [_as_said(strong, prompt, packer) for prompt in graphs(8)]
    rows = depcache_rows(drawn, material.tokenizer, asked, 1, "w")
    found = {row.system: row.median for row in rows}
    assert found[UNMOVED] < found[ANEW]
    assert found[REUSED] < found[ANEW]


def test_an_engine_is_told_where_paths_stand() -> None:
    asked = GraphPrompt(("Fuji -> has -> x", "Fuji -> is -> y"), "Where?").payload(2)
    content = asked.messages[0].content
    assert [content[span.start : span.stop] for span in asked.chunk_spans] == [
        "Fuji -> has -> x",
        "Fuji -> is -> y",
    ]


def test_prompts_of_a_graph_are_seeded_and_have_paths_that_share() -> None:
    found = library_prompts(TRIPLES, 3, 2, 2, seed=1)
    assert found == library_prompts(TRIPLES, 3, 2, 2, seed=1)
    for prompt in found:
        heads = [line.split(" -> ")[0] for line in prompt.lines]
        assert len(heads) == 4
        assert len(set(heads)) == 2
        assert any(f"Where does {head} lead" in prompt.question for head in heads)


def test_behind_a_tree_the_chat_model_answers_differently_than_behind_text() -> None:
    asked = library_prompts(TRIPLES, 2, 2, 3, seed=1)
    found = divergences(tiny_chat.model(), tokenizer(), asked, 3, 1)
    assert len(found) == 2
    assert all(one.kl_first > 0 and one.kl_mean > 0 for one in found)


@pytest.mark.bench
def test_all_rows_are_there_and_every_ratio_is_defined(material: graph_fidelity.Material) -> None:
    found: SuiteResult = graph_fidelity.run(True, TINY, material)
    assert from_json(as_json(found), found.suite) == found
    assert set(found.ratios) <= set(ratio_definitions(found.suite))
    workloads = {row.workload for row in found.rows if row.system == FLAT}
    assert workloads == {"1 subgraph", "2 subgraphs"}
    assert sum(row.system == ENGINE and row.metric == "exact_match" for row in found.rows) == 1
