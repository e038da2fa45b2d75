"""Measure whole programs in which every mechanism takes part: all of it on, and all of it off.

Four programs over one language model (SmolLM2 135M Instruct, in float32), one embedder (MiniLM) and
the same passages: a LangChain chain and a LangGraph agent that searches and answers twice, both
over langchain_huggingface, a LlamaIndex query engine over HuggingFaceLLM, and a ``RAGraph`` of two
retrievals (vectors, a knowledge graph), a reranking and an answer. Answers have 8 tokens at most
and are greedy. Off, a program is the frameworks' own, a ``RAGraph`` the function it stands for;
with the callers at once and torch threads at which the chain is fastest. On, the same objects are
accelerated by one accelerator with its defaults. One user asks, or 16 at once. Both arms must give
the same answers. The quick form cuts the passages to 40 words.

The ``RAGraph``'s first text about ten texts that were seen before, in another order, is measured by
each way of reuse (the checkpoint's bfloat16). Full and fused reuse are approximate.

Ratios:
    all_on_vs_off: against the same programs with all of it off, at their best callers and torch
        threads: answers/s of 16 users; median over turns, the mean of the four programs.
    all_on_vs_off_worst: against the same programs with all of it off: the same of the program where
        it is lowest.
    all_on_vs_off_1: against the same programs with all of it off, at their best torch threads:
        answers/s of one user; median over turns, the lowest of the four programs.
    one_user: against the same programs with all of it off, at their best torch threads: time of one
        user's answer, on / off (lower is better; accepted: at most 1.03); median over
        questions, the worst of the four programs.
    reuse_ttft_graph: against the same graph that computes every prompt: its time to the first text
        / that of full reuse; median over turns.
    fused_ttft_graph: against the same graph that computes every prompt: its time to the first text
        / that with 15 % of the texts' tokens computed again; median over turns.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.measure import Pairs, estimate
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of
from bench.together.load import Compared, best_setting, compare, warm_up
from bench.together.material import Material, real_material
from bench.together.programs import LCEL, programs
from bench.together.reuse import first_texts
from rag_accel.accelerator import Accelerator
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.fidelity.prompts import TextCutter

_PATIENCE_S = 120.0
_logger = logging.getLogger("bench.together")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: who ask at once.
        chunks: texts that are searched.
        words: of each of them at most; 0 for all.
        triples: of the knowledge graph.
        tokens: most tokens of an answer.
        turns: of many users, each of whom asks once.
        alone_turns: of one user.
        alone: questions of such a turn.
        tuning: questions that look for plain's best setting.
        texts: of a prompt whose texts were seen before.
        text_tokens: of each of them.
        reuse_turns: of such prompts.
    """

    users: int = 16
    chunks: int = 600
    triples: int = 20_000
    tokens: int = 8
    turns: int = 3
    alone_turns: int = 3
    alone: int = 3
    tuning: int = 8
    texts: int = 10
    text_tokens: int = 512
    reuse_turns: int = 7
    words: int = 0


QUICK = Sizes(words=40, alone=1, tuning=4, reuse_turns=3)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over real models."""
    chosen = sizes or (QUICK if quick else FULL)
    asked = chosen.users * chosen.turns + chosen.alone * chosen.alone_turns
    made = material or real_material(chosen.chunks, chosen.triples, asked)
    searched = made.of_words(chosen.words)
    with little_garbage(), bench_accelerator() as accelerator:
        rows, found = _programs(searched, accelerator, chosen)
    _logger.info("%s", found)
    cutter = TextCutter(made.tokenizer, made.texts)
    texts = [cutter.text(chosen.text_tokens) for _ in range(chosen.texts)]
    first = first_texts(made.folder, texts, chosen.texts * chosen.text_tokens, chosen.reuse_turns)
    found |= {"reuse_ttft_graph": first.gain("full"), "fused_ttft_graph": first.gain("fused")}
    _logger.info("%s", found)
    rows += first.rows()
    wrong = too_many(rows, "different_answers")
    return SuiteResult("together", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _programs(
    material: Material, accelerator: Accelerator, sizes: Sizes
) -> tuple[list[Row], dict[str, float]]:
    made = programs(material, accelerator, sizes.tokens)
    questions = list(material.questions)
    for program in made.values():
        warm_up(program, questions[:2])
    wait_until_compiled(_PATIENCE_S)
    setting = best_setting(made[LCEL][0], questions[: sizes.tuning], sizes.users)
    _logger.info("plain is fastest with %s", setting)
    many = [questions[turn * sizes.users :][: sizes.users] for turn in range(sizes.turns)]
    rest = questions[sizes.turns * sizes.users :]
    alone = [rest[turn * sizes.alone :][: sizes.alone] for turn in range(sizes.alone_turns)]
    rows, found, lone = list[Row](), list[Compared](), list[float]()
    times = dict[str, Pairs[float]]()
    for name, program in made.items():
        together = compare(name, program, many, sizes.users, setting)
        single = compare(name, program, alone, 1, setting)
        found.append(together)
        lone.append(single.gain)
        times[f"{name}, 1 user"] = single.lone_ms
        rows += [*together.rows, *single.rows]
        _logger.info("%s: %.2f, one user %.2f", name, together.gain, single.gain)
    more, worst = one_user(times)
    return [*rows, *more], {
        "all_on_vs_off": estimate(*(one.gains for one in found)),
        "all_on_vs_off_worst": min(one.gain for one in found),
        "all_on_vs_off_1": min(lone),
        **worst,
    }
