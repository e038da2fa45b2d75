"""The reader of documents is asked what its texts say, and taught where that stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from bench.kv.fidelity import ATTENTION, FULL, Reader, match
from bench.kv.reader import (
    RECIPE,
    RELATIONS,
    SHAPE,
    Context,
    Recipe,
    document_task,
    generate_context,
    gold_questions,
    packed_lesson,
)
from bench.readers import Course, trained_folder
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel.fidelity.tuning.packing import IGNORED

SMALL = Recipe(stages=(SHAPE,), course=Course((2.0,), 2, 1, precision="float32"), tokens=900)
CONTEXTS = [generate_context(RECIPE, SHAPE, np.random.default_rng(seed)) for seed in range(8)]
PHRASES = {phrase: name for name, pair in RELATIONS.items() for phrase in pair}
FACT = re.compile(rf"(\S+) ({'|'.join(PHRASES)}) (\S+) \.")


def said(context: Context) -> dict[tuple[str, str], tuple[str, bool]]:
    """Read each value, and whether its text names whom it is about: "he" was named last."""
    found: dict[tuple[str, str], tuple[str, bool]] = {}
    person = ""
    for text in context.texts:
        for who, phrase, value in FACT.findall(" ".join(text)):
            person = who if who.startswith("person") else person
            subject = person if who == "he" else who
            found[subject, PHRASES[phrase]] = value, subject in text
    return found


@pytest.mark.parametrize("context", CONTEXTS)
def test_an_answer_follows_from_the_texts(context: Context) -> None:
    facts = said(context)
    assert len(facts) == 20
    for asked in context.questions:
        _, second, first, _, name = asked.words
        value, is_named = facts[name, first]
        assert asked.answer == (value if second == "none" else facts[value, second][0])
        assert asked.is_cut_off == (second == "none" and not is_named)
    assert {asked.is_cut_off for asked in context.questions} == {True, False}


def test_attention_is_supervised_from_values_to_subjects_and_from_questions_to_values() -> None:
    context, facts = CONTEXTS[0], said(CONTEXTS[0])
    ids = document_task().tokenizer.get_vocab()
    lesson = packed_lesson(ids, [context], [context.questions])
    words = {at: word for word, at in ids.items()}
    pairs = [
        [
            (words[int(lesson.packed.ids[0, at])] for at in pair)
            for pair in zip(each.rows, each.slots, strict=True)
        ]
        for each in lesson.supervised
    ]
    about, first, second = ([tuple(pair) for pair in each] for each in pairs)
    assert sorted(about) == sorted((value, who) for (who, _), (value, _) in facts.items())
    hops = [asked for asked in context.questions if asked.words[1] != "none"]
    assert first == [(q.words[4], facts[q.words[4], q.words[2]][0]) for q in context.questions]
    assert second == [(q.words[4], q.answer) for q in hops]
    assert [each.layer for each in lesson.supervised] == [0, 2, 3]


def test_a_trained_reader_answers_packed_questions_as_prompts(tmp_path: Path) -> None:
    model, tokenizer = load_source(trained_folder(document_task(SMALL), tmp_path))
    context, questions = CONTEXTS[0], CONTEXTS[0].questions[:3]
    packed = packed_lesson(tokenizer.get_vocab(), [context], [questions]).packed
    with torch.inference_mode():
        logits = model(packed.ids, packed.mask, packed.positions).logits
        alone = [
            model(torch.tensor([context.prompt(asked).segmented(tokenizer).ids])).logits[0, -1]
            for asked in questions
        ]
    torch.testing.assert_close(logits[packed.labels != IGNORED], torch.stack(alone))
    reader, seeds = Reader(model, tokenizer, 512), [gold_questions(SMALL, 1, 20, 0)]
    every, cut_off = match(reader, {FULL: reader.arms()[FULL]}, seeds)
    assert [len(every.found[name][0]) for name in (ATTENTION, FULL)] == [20, 20]
    assert len(cut_off.found[FULL][0]) == sum(gold.is_cut_off for gold in seeds[0][1]) > 0
