"""Compare reused attention state with full attention over the same tokens: SmolLM2 135M Instruct.

A prompt is a question and the eight texts nearest to it, by MiniLM's vectors, of a corpus of about
1,100 texts of one length (of prompts of 5,000 tokens, 450); the quick form has prompts of 2,000
tokens alone. Other prompts are of random texts and the one nearest to the question. Full attention
over the prompt's joined ranges answers it greedily in at most 10 tokens. Every other way is given
these tokens, whatever it would have chosen; compared are the distributions that it had for them.

All ways are made by their definitions (``bench.baselines``), in float32 over the engine's runner of
torch; tests hold the engine to them. Each text was in another prompt before, of those found for the
text nearest to it (or of random ones), whose new texts were encoded behind the system's turn and
behind each other: its state from there is used if the prompt holds a text that it has seen, and
else that behind the system's turn alone, which ``texts alone`` always have. ``fused`` computes
those tokens again that the engine chooses by default. Over texts alone, ``whole question, last
layer`` is FusionRAG's choice, ProphetKV means over all layers, EPIC takes the first tokens of every
text but the first, and CacheBlend's choice is made from the whole prompt's full attention.

Beside SmolLM2, a reader of 3.2M parameters answers questions over four documents that were cut in
two texts of 24 tokens each, and two texts on organisations (``bench.kv.reader``): the second text
of a document calls the person "he", so that full reuse loses who a fact is about. It was trained
here, with supervised attention: of the layer, among others, in which ``fused`` looks by default
what the question attends to. It answers by the same ways; its searches go by words. Its figures
are shares of right answers, of one token each, with their standard errors over seeds of contexts.
``python -m bench.kv.reader`` trains it into the user's cache; without one a row says ``missing``,
and its ratio is left out.

Figures of SmolLM2 are means over prompts with their standard errors: Kullback-Leibler divergence in
nats of the first token and of all, and how often full attention's most probable token is the most
probable one. Nothing is timed.

Ratios:
    full_top1: against full attention over the same tokens: share of an answer's tokens that are the
        most probable ones with full reuse, too; mean over prompts, those of the middle length where
        there are several.
    recovers_15: against full reuse of texts alone, searched prompts of 2,000 tokens: the share of
        its mean divergence from full attention that is gone where 15 % of the texts' tokens are
        computed again.
    recovers_0: against full reuse of texts alone, the same prompts: the share that is gone where
        texts were encoded behind others, and nothing is computed again.
    random_neighbours: against texts alone with 15 % computed again, random passages of 500 tokens:
        the share of the divergence of texts alone that states behind others add to what is gone;
        below 0 they harm.
    kept_f1_15: against full attention: F1 of the reader's answers where 15 % of the texts' tokens
        are computed again, as by default / its F1 with full attention. An answer is one token, so
        that F1 is exact match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.arms import thread_candidates
from bench.kv.fidelity import (
    ALONE,
    ALONE_15,
    ATTENTION,
    FULL,
    FUSED_15,
    Corpus,
    Fidelity,
    Matches,
    Reader,
    match,
    measure,
)
from bench.kv.reader import RECIPE, Recipe, document_task, gold_questions
from bench.local_llm.choices import missing_row
from bench.results import SuiteResult, sizes_of
from rag_accel.engine_api import Document
from rag_accel.engines.llm.local.model.loading import load_source
from rag_accel.fidelity.prompts import cut_texts, searched_prompts
from rag_accel.sample import read_corpus, smollm2_folder
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

#: Tokens of a prompt and its answer beside those of texts, at most.
_AROUND = 512
#: What random passages are compared by.
_RANDOM = (FULL, FUSED_15, ALONE, ALONE_15)


@dataclass(frozen=True, slots=True)
class Length:
    """Prompts of one length.

    Args:
        tokens: of the texts of a prompt.
        prompts: of one search.
        documents: that are cut into the texts.
    """

    tokens: int
    prompts: int
    documents: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        lengths: the ratios of one length are those of the middle one.
        random: prompts of random passages.
        passages: texts of a prompt.
        answer: most tokens of an answer.
        seeds: of contexts of the reader.
        contexts: of each seed.
        questions: about each context.
    """

    lengths: tuple[Length, ...] = (
        Length(500, 200, 340),
        Length(2000, 60, 1400),
        Length(5000, 20, 1400),
    )
    random: Length = Length(500, 200, 340)
    passages: int = 8
    answer: int = 10
    seeds: int = 3
    contexts: int = 40
    questions: int = 8


QUICK = Sizes(lengths=(Length(2000, 12, 1400),), random=Length(500, 12, 340), contexts=5)
FULL_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """Models and what they are asked about; tests give small ones.

    Args:
        model: of transformers.
        tokenizer: its own.
        documents: that prompts are made of.
        embed: returns vectors of texts.
        reader: of documents, its tokenizer and its recipe; None where it is not trained.
    """

    model: Any
    tokenizer: Any
    documents: Sequence[Document]
    embed: Callable[[Sequence[str]], Any]
    reader: tuple[Any, Any, Recipe] | None


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL_SIZES)
    lengths = (*chosen.lengths, chosen.random)
    given = material or _real_material(max(length.documents for length in lengths))
    threads = max(thread_candidates(usable_cores()))
    with torch_threads(threads):
        found = _compared(chosen, given)
        answers = _answered(chosen, *given.reader) if given.reader else ()
    rows = [row for each in (*found, *answers) for row in each.rows()]
    ratios = _ratios(*found)
    if not answers:
        rows.append(missing_row("reader of documents", "python -m bench.kv.reader trains it"))
    elif full := answers[0].mean(ATTENTION):
        ratios["kept_f1_15"] = answers[0].mean(FUSED_15) / full
    return SuiteResult("kv_fidelity", tuple(rows), ratios, sizes=sizes_of(chosen))


def _answered(sizes: Sizes, model: Any, tokenizer: Any, recipe: Recipe) -> tuple[Matches, Matches]:
    reader = Reader(model, tokenizer, _AROUND)
    seeds = [
        gold_questions(recipe, sizes.contexts, sizes.questions, seed) for seed in range(sizes.seeds)
    ]
    return match(reader, reader.arms(), seeds)


def _compared(sizes: Sizes, material: Material) -> list[Fidelity]:
    """Return what is found in random passages, and in those of a search at each length."""
    context = _AROUND + max(length.tokens for length in sizes.lengths)
    reader = Reader(material.model, material.tokenizer, context)

    arms, random = reader.arms(), _corpus(sizes, material, sizes.random)
    documents = material.documents[: sizes.random.documents]
    among = searched_prompts(documents, random.among_random, sizes.random.prompts)
    few = {name: arms[name] for name in _RANDOM}
    cases = reader.cases(among, random, sizes.answer, random.among_random)
    found = [measure(reader, few, "prompts of random passages", cases)]
    for length in sizes.lengths:
        corpus = _corpus(sizes, material, length)
        documents = material.documents[: length.documents]
        prompts = searched_prompts(documents, corpus.search, length.prompts)
        cases = reader.cases(prompts, corpus, sizes.answer, corpus.search)
        found.append(measure(reader, arms, "prompts of one search", cases))
    return found


def _corpus(sizes: Sizes, material: Material, length: Length) -> Corpus:
    documents, tokens = material.documents[: length.documents], length.tokens // sizes.passages
    texts = cut_texts(material.tokenizer, documents, tokens)
    return Corpus(texts, material.embed, sizes.passages)


def _ratios(random: Fidelity, *searched: Fidelity) -> dict[str, float]:
    middle = searched[len(searched) // 2]
    return {
        "full_top1": middle.mean(FULL, "top1"),
        "recovers_15": middle.recovers(FUSED_15),
        "recovers_0": middle.recovers(FULL),
        "random_neighbours": random.recovers(FUSED_15) - random.recovers(ALONE_15),
    }


def _real_material(documents: int) -> Material:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rag_accel.engines.embedding.models import load_named_model

    folder = str(smollm2_folder())
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    encoder = load_named_model(None, "embedder")

    def embed(texts: Sequence[str]) -> Any:
        return encoder.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)

    trained = document_task().folder()
    reader = (*load_source(trained), RECIPE) if trained.exists() else None
    return Material(model.eval(), tokenizer, read_corpus(documents).documents, embed, reader)
