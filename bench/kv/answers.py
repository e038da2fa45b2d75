"""Answers over reused texts against gold ones: EM, F1 and normalised F1 (FusionRAG, Eq. 11)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from bench.results import Row
from rag_accel.engine_api import Document
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tokens import TokenInput
from rag_accel.fidelity.divergence import mean_and_error
from rag_accel.fidelity.forced import ForcedEngine
from rag_accel.fidelity.prompts import TextCutter, TextPrompt

EXACT, REUSE = "accelerated, exact", "accelerated, full"
SYSTEM = "Answer the question with the one sentence of the passages that says it."
_PLACES = (
    *("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Juniper", "Larch"),
    *("Maple", "Oak", "Pine", "Rowan", "Spruce", "Willow"),
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A prompt and its answer, which stands in one of the prompt's texts."""

    prompt: TextPrompt
    answer: str


def gold_questions(
    tokenizer: Any,
    documents: Sequence[Document],
    count: int,
    tokens: tuple[int, int],
    passages: tuple[int, int],
    seed: int = 0,
) -> list[GoldQuestion]:
    """Return questions for a made-up number, of which each text has one about another place.

    A text is the beginning of a document, with a sentence of ours between two of its lines. The
    gold answer is the sentence: small models that are asked for the number alone repeat it, too.

    Args:
        tokenizer: the model's.
        documents: where texts are the beginnings of.
        count: of questions.
        tokens: the least and the most of the texts of a prompt, about.
        passages: the least and the most of a prompt.
        seed: of the choice.
    """
    random = Random(seed)
    return [_question(tokenizer, documents, tokens, passages, random) for _ in range(count)]


def _question(
    tokenizer: Any,
    documents: Sequence[Document],
    tokens: tuple[int, int],
    passages: tuple[int, int],
    random: Random,
) -> GoldQuestion:
    chosen = random.sample(documents, random.randint(*passages))
    size = random.randint(*tokens) // len(chosen)
    places = random.sample(_PLACES, len(chosen))
    codes = [str(one) for one in random.sample(range(1000, 10_000), len(chosen))]
    facts = [
        f"The access code of the {place} depot is {code}."
        for place, code in zip(places, codes, strict=True)
    ]
    texts = [
        _with_fact(TextCutter(tokenizer, [one.text]).text(size), fact, random)
        for one, fact in zip(chosen, facts, strict=True)
    ]
    about = random.randrange(len(chosen))
    question = f"What is the access code of the {places[about]} depot?"
    return GoldQuestion(TextPrompt(tuple(texts), question, SYSTEM), facts[about])


def _with_fact(text: str, fact: str, random: Random) -> str:
    lines = text.splitlines()
    at = random.randint(0, len(lines))
    return "\n".join([*lines[:at], fact, *lines[at:]])


# Scores -----------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without articles and punctuation."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return _ARTICLES.sub(" ", plain).split()


def exact_match(answer: str, gold: str) -> float:
    """Return 1 where an answer has the words of the gold one and no others, else 0."""
    return float(words(answer) == words(gold))


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of words (ROUGE-1)."""
    said, wanted = Counter(words(answer)), Counter(words(gold))
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total()) if shared else 0.0


def normalised_f1(value: float, full_attention: float, full_reuse: float) -> float | None:
    """Return the share of full attention's gain over full reuse; None where it has none."""
    gain = full_attention - full_reuse
    return (value - full_reuse) / gain if gain > 0 else None


# Rows -------------------------------------------------------------------------------------------


class Answerer:
    """The answers of full attention, and of engines that reuse texts, as drop-ins ask them.

    Args:
        model: of transformers.
        tokenizer: its own.
        context: the most tokens of a prompt and its answer.
        threads: of each forward.
        shares: of the texts' tokens that are computed again.
    """

    def __init__(
        self, model: Any, tokenizer: Any, context: int, threads: int, shares: Sequence[float]
    ) -> None:
        loaded = load(model, tokenizer, context=context)
        self._tokenizer, self._ends = tokenizer, loaded.ends
        # None keeps a lane when its prompt has ended: the next engine needs the room.
        always: dict[str, Any] = {"reuse_always": True, "prefix_lanes": 0}
        options = {REUSE: LocalOptions(kv_reuse="full", **always)}
        for share in shares:
            name = f"accelerated, fused {share * 100:.0f} %"
            options[name] = LocalOptions(kv_reuse="fused", recompute_ratio=share, **always)
        self._exact = ForcedEngine(loaded, LocalOptions(prefix_lanes=0), threads)
        self._engines = {
            name: ForcedEngine(load(model, tokenizer, context=context, options=each), each, threads)
            for name, each in options.items()
        }

    def close(self) -> None:
        """Free the engines."""
        for engine in (self._exact, *self._engines.values()):
            engine.close()

    def answers(self, prompt: TextPrompt, tokens: int) -> dict[str, str]:
        """Return each engine's greedy answer over the same tokens of a prompt."""
        ids = prompt.segmented(self._tokenizer).ids
        asked = TokenInput(ids=ids, ends=self._ends, most=tokens)
        output, _ = self._exact.answer(asked, len(ids))
        found = {EXACT: self._tokenizer.decode(output.tokens, skip_special_tokens=True)}
        for name, engine in self._engines.items():
            found[name] = engine.answer(prompt.generation_input(tokens), len(ids))[0].text
        return found


def answer_rows(answerer: Answerer, questions: Sequence[GoldQuestion], tokens: int) -> list[Row]:
    """Return means over questions with their standard errors, and normalised F1.

    Args:
        answerer: answers.
        questions: with gold answers.
        tokens: most tokens of an answer.
    """
    said = [(one.answer, answerer.answers(one.prompt, tokens)) for one in questions]
    found = {
        metric: {name: [score(each[name], gold) for gold, each in said] for name in said[0][1]}
        for metric, score in (("em", exact_match), ("f1", f1))
    }
    workload = f"{len(questions)} gold questions"
    rows: list[Row] = []
    for metric, by_name in found.items():
        for name, values in by_name.items():
            value, error = mean_and_error(values)
            rows.append(Row(name, workload, metric, value, None, len(values)))
            rows.append(Row(name, workload, f"{metric}_standard_error", error, None, len(values)))
    means = {name: fmean(values) for name, values in found["f1"].items()}
    for name, value in means.items():
        share = normalised_f1(value, means[EXACT], means[REUSE])
        if share is not None:
            rows.append(Row(name, workload, "normalised_f1", share, None, len(questions)))
    return rows
