"""Embed the texts of concurrent callers: what the engine does, and what the scheduler does.

Each caller embeds one text a call, the next as soon as it has a vector. The model is the user's own
(MiniLM), recognised and driven by an engine of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.ablation import switches
from bench.ablation.company import beside
from bench.ablation.measured import (
    LATENCY,
    STEP_TIMEOUT_S,
    Ablation,
    Arm,
    Gave,
    ablate,
    same_vectors,
    under,
)
from bench.ablation.switches import Lacking
from bench.arms import bench_accelerator
from bench.embedding.levels import EmbedQuery
from langchain_rag_accel import accelerate
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel_demo.load import Shape, run_load

RATE = "texts_per_s"
#: Times that each text is asked for where callers repeat each other.
REPEATED = 8
_PATIENCE_S = 60.0


ON_TORCH = {"embedding_runtime": "torch"}
LACKING: Mapping[str, Lacking] = {
    "noise": Lacking(),
    "batching": Lacking({"max_batch": 1}),
    "waiting_for_newcomers": Lacking({"batch_wait_ms": 0.0}),
    "starting_together": Lacking(switch=switches.one_event_at_a_time),
    "compiled_model": Lacking(ON_TORCH),
    "one_in_line": Lacking(switch=switches.no_micro_batch_in_line),
    "joining_waiting_steps": Lacking(switch=switches.no_interrupts),
    "own_reports": Lacking(switch=switches.reports_to_the_driver),
    "sorting_by_length": Lacking(switch=switches.lengths_mixed),
    "token_bounds": Lacking(switch=switches.counted_micro_batches),
}


@dataclass(frozen=True, slots=True)
class Crowd:
    """A crowd of callers, and the mechanisms that could matter to it.

    Args:
        callers: how many call at the same time.
        shape: threads, or tasks of one loop.
        lacking: mechanisms that are measured.
        is_mixed: whether every second text is a passage.
        is_on_torch: whether nothing is compiled: then a step takes nobody in who comes later.
    """

    callers: int
    shape: Shape
    lacking: tuple[str, ...]
    is_mixed: bool = False
    is_on_torch: bool = False

    @property
    def regime(self) -> str:
        """Return how rows name it."""
        thing = self.shape[:-1] if self.callers == 1 else self.shape
        more = " mixed" if self.is_mixed else " torch" if self.is_on_torch else ""
        return f"{self.callers} {thing}{more}"


#: Callers that fit into few micro-batches: there it matters most when each of them begins.
_FEW = 4
_COMPILED = ("compiled_model", "one_in_line")
_SCHEDULED = ("batching", "starting_together")
_FOR_TORCH = ("waiting_for_newcomers", "starting_together")
CROWDS = (
    Crowd(1, "threads", ("compiled_model", "own_reports")),
    Crowd(4, "threads", ("batching", "one_in_line", "joining_waiting_steps")),
    Crowd(4, "tasks", ("one_in_line", "joining_waiting_steps")),
    Crowd(
        16,
        "threads",
        ("noise", *_SCHEDULED, *_COMPILED, "joining_waiting_steps", "own_reports"),
    ),
    Crowd(64, "threads", ("batching", *_COMPILED)),
    Crowd(64, "tasks", _SCHEDULED),
    Crowd(16, "tasks", ("starting_together",)),
    Crowd(64, "threads", ("sorting_by_length", "token_bounds"), is_mixed=True),
    *(Crowd(callers, "threads", _FOR_TORCH, is_on_torch=True) for callers in (2, 16)),
)


@dataclass(frozen=True, slots=True)
class Texts:
    """What is embedded: distinct questions, and passages."""

    questions: Sequence[str]
    passages: Sequence[str]

    def of(self, crowd: Crowd, each: int) -> Sequence[str]:
        """Return the texts of one run: ``each`` for each caller, but from 32 to 128 in all.

        Few callers, and those on torch, take a while to fall into step: they have more.
        """
        count = min(128, max(32, each * crowd.callers))
        if crowd.is_on_torch:
            count = max(count, 96)
        elif 1 < crowd.callers <= _FEW:
            count = max(count, 192)
        if not crowd.is_mixed:
            return self.questions[:count]
        pairs = zip(self.questions[: count // 4], self.passages, strict=False)
        return [text for pair in pairs for text in pair]


def measure(embeddings: Any, texts: Texts, turns: int, each: int) -> list[Ablation]:
    """Measure every mechanism on every crowd it could matter to.

    Args:
        embeddings: LangChain embeddings.
        texts: what is embedded.
        turns: runs of each arm.
        each: texts of a run for each caller.
    """
    with ExitStack() as stack:
        open_arm = partial(_opened, stack, embeddings, texts.questions[:16])
        on = open_arm({})
        arms = {name: open_arm(one.options) for name, one in LACKING.items()}
        wait_until_compiled(_PATIENCE_S)
        found: list[Ablation] = []
        for crowd in CROWDS:
            if not crowd.is_on_torch:
                found += _against(crowd, texts.of(crowd, each), on, arms, turns)
        found += _without_compiling(open_arm, texts, turns, each)
        return [*found, *_with_more(open_arm, on, texts, turns, each)]


def _without_compiling(
    open_arm: Callable[[Mapping[str, Any]], EmbedQuery], texts: Texts, turns: int, each: int
) -> list[Ablation]:
    """Measure what a scheduler does for an engine whose steps take nobody in."""
    crowds = [crowd for crowd in CROWDS if crowd.is_on_torch]
    names = {name for crowd in crowds for name in crowd.lacking}
    on = open_arm(ON_TORCH)
    arms = {name: open_arm({**ON_TORCH, **LACKING[name].options}) for name in names}
    return [
        one for crowd in crowds for one in _against(crowd, texts.of(crowd, each), on, arms, turns)
    ]


def _against(
    crowd: Crowd,
    asked: Sequence[str],
    on: EmbedQuery,
    arms: Mapping[str, EmbedQuery],
    turns: int,
) -> list[Ablation]:
    off = {
        name: under(LACKING[name].switch, _load(arms[name], asked, crowd)) for name in crowd.lacking
    }
    whole = _load(on, asked, crowd)
    return ablate(crowd.regime, RATE, whole, off, turns, same=same_vectors)


def _with_more(
    open_arm: Callable[[Mapping[str, Any]], EmbedQuery],
    plain: EmbedQuery,
    texts: Texts,
    turns: int,
    each: int,
) -> list[Ablation]:
    """Measure what no arm has by itself: shared runs, uploads in parts."""
    crowd = Crowd(64, "threads", ())
    distinct = texts.of(crowd, each)
    repeated = [text for text in distinct[: len(distinct) // REPEATED] for _ in range(REPEATED)]
    load = partial(_load, asked=repeated, crowd=crowd)
    shared = ablate(
        f"{crowd.regime} repeated",
        RATE,
        load(open_arm({"single_flight": True})),
        {"single_flight": load(plain)},
        turns,
        same=same_vectors,
    )
    return [*shared, *_uploads(open_arm, plain, texts, turns)]


def _uploads(
    open_arm: Callable[[Mapping[str, Any]], EmbedQuery], plain: EmbedQuery, texts: Texts, turns: int
) -> list[Ablation]:
    """Measure queries while an upload is embedded that may enter the engine in parts, or not."""
    whole = open_arm({"passes": "none"})
    return ablate(
        "queries beside an upload",
        LATENCY,
        _queries_beside(plain, texts),
        {"split_nodes": _queries_beside(whole, texts)},
        turns,
        same=same_vectors,
    )


def _opened(
    stack: ExitStack, embeddings: Any, warm_up: Sequence[str], options: Mapping[str, Any]
) -> EmbedQuery:
    """Return accelerated embeddings whose engine exists."""
    accelerator = stack.enter_context(bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options))
    arm = EmbedQuery(accelerate(embeddings, accelerator=accelerator))
    run_load(arm, warm_up, 4, "threads")
    return arm


def _load(arm: EmbedQuery, asked: Sequence[str], crowd: Crowd) -> Arm:
    def run(turn: int) -> Gave:
        load = run_load(arm, asked, crowd.callers, crowd.shape)
        return Gave(load.throughput_rps, load.answers)

    return run


def _queries_beside(arm: EmbedQuery, texts: Texts) -> Arm:
    questions = texts.questions
    return beside(
        lambda: arm.embed_all(texts.passages),
        lambda number: arm.invoke(questions[number % len(questions)]),
    )
