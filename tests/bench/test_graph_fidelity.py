"""The reader of the suite on fidelity of trees is taught where the answer stands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from bench.graph.reader import Recipe, graph_names, reader_tokenizer, supervised
from bench.readers import attended
from rag_accel.fidelity.tuning import (
    GraphQuestions,
    GraphShape,
    generate_questions,
)
from rag_accel.fidelity.tuning.packing import IGNORED, PromptPacker, batch_of

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


def graphs(count: int) -> Iterator[GraphQuestions]:
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield generate_questions(graph_names(RECIPE), GraphShape(2, 2, 2, 4), rng)


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
    packed = batch_of([packer.pack(prompt) for prompt in graphs(2)])
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
    wanted = supervised(packed)
    assert abs(float(attended([perfect] * 4, wanted))) < 1e-4
    assert float(attended([perfect * 0] * 4, wanted)) < -10
