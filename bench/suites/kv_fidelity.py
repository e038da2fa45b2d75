"""Compare reused attention state with full attention over the same tokens: SmolLM2 135M Instruct.

A prompt is 4 to 6 real passages, each the beginning of a document, and a question that one of them
answers. Full attention over the prompt's joined ranges answers it greedily in at most 10 tokens.
Every other way is given these tokens, whatever it would have chosen; compared are the distributions
that it had for them. The engine's ways are the engine itself, asked as drop-ins ask it: only what
its runner returns is replaced. Beside them stand full reuse and other choices of tokens by their
definitions (``bench.baselines.chunk_reuse``); CacheBlend's choice is made there from the whole
prompt's full attention. QCFuse's is made in layers that were found on other prompts
(``bench.baselines.critical_layers``). All texts are encoded behind the system's turn, once for each
prompt.

Beside that, questions are answered freely whose gold answer is known, a sentence of one passage
that others have much like it, and EM and F1 of words are compared. Normalised F1 (FusionRAG,
Eq. 11) is 0 for
full reuse and 1 for full attention; where full attention is no better, there is none.

Figures are means over prompts with their standard errors: Kullback-Leibler divergence in nats of
the first token and of all, and how often full attention's most probable token is the most probable
one. Nothing is timed.

Ratios:
    full_top1: against full attention over the same tokens: share of an answer's tokens that are the
        most probable ones with full reuse, too; mean over prompts.
    fused15_top1: against full attention over the same tokens: the same share where 15 % of the
        texts' tokens are computed again.
    fused15_recovers: against full reuse: the share of its mean divergence from full attention that
        is gone where 15 % of the texts' tokens are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.arms import thread_candidates
from bench.kv.answers import answer_rows, gold_questions
from bench.kv.fidelity import FULL, FUSED_15, Fidelity, Reader, measure
from bench.results import SuiteResult, sizes_of
from rag_accel.engine_api import Document
from rag_accel.fidelity.prompts import TextPrompt, short_prompts
from rag_accel.sample import read_corpus, smollm2_folder
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import torch_threads

_CHUNKS = 2000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        prompts: how many.
        tokens: the least and the most of the passages of a prompt, about.
        passages: the least and the most of a prompt.
        profiled: prompts that critical layers are found on.
        answer: most tokens of an answer.
        context: most tokens of a prompt and its answer.
        shares: of the texts' tokens that are computed again.
        questions: how many have a gold answer.
        gold_answer: most tokens of an answer to them.
        answered_shares: of the texts' tokens, where those are answered.
    """

    prompts: int = 200
    tokens: tuple[int, int] = (360, 600)
    passages: tuple[int, int] = (4, 6)
    profiled: int = 8
    answer: int = 10
    context: int = 1024
    shares: tuple[float, ...] = (0.05, 0.15, 0.3)
    questions: int = 60
    gold_answer: int = 24
    answered_shares: tuple[float, ...] = (0.05, 0.15, 0.3)


QUICK = Sizes(prompts=40, profiled=4, shares=(0.15,), questions=12)
FULL_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """A model of transformers, its tokenizer, and documents; tests give small ones."""

    model: Any
    tokenizer: Any
    documents: Sequence[Document]


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL_SIZES)
    given = material or _real_material()
    prompts = _prompts(given, chosen, chosen.prompts, seed=0)
    others = _prompts(given, chosen, chosen.profiled, seed=1)
    threads = max(thread_candidates(usable_cores()))
    reader = Reader(
        *(given.model, given.tokenizer, chosen.context, threads),
        *(chosen.shares, chosen.answered_shares),
    )
    questions = gold_questions(
        given.tokenizer, given.documents, chosen.questions, chosen.tokens, chosen.passages
    )
    try:
        with torch_threads(threads):
            reader.find_critical_layers(others, chosen.answer)
            found = measure(reader, prompts, chosen.answer)
            answers = answer_rows(reader.answerer(), questions, chosen.gold_answer, FULL)
    finally:
        reader.close()
    return SuiteResult(
        *("kv_fidelity", (*found.rows(), *answers), _ratios(found)), sizes=sizes_of(chosen)
    )


def _prompts(material: Material, sizes: Sizes, count: int, seed: int) -> list[TextPrompt]:
    given = (count, sizes.tokens, sizes.passages, seed)
    return short_prompts(material.tokenizer, material.documents, *given)


def _ratios(found: Fidelity) -> dict[str, float]:
    ratios = {"full_top1": found.mean(FULL, "top1")}
    if FUSED_15 in found.found:
        ratios["fused15_top1"] = found.mean(FUSED_15, "top1")
        ratios["fused15_recovers"] = found.recovers(FUSED_15)
    return ratios


def _real_material() -> Material:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(smollm2_folder())
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return Material(model.eval(), tokenizer, read_corpus(_CHUNKS).documents)
