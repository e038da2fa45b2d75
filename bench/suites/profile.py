"""Measure how near the gains that ``rag-accel profile`` predicts are to the gains measured.

Ten programs of LangChain, LangGraph and LlamaIndex, each run plain by its profile, which predicts
the gain of ``accelerate``, and then accelerated with the same questions. Their searches and models
sleep; embeddings of a program are a scripted server, which answers after 80 ms. The user has named
the classes that may be called from several threads.

Ratios:
    profile_within_20: against the measured gain: share of the programs whose predicted gain is
        within 20 % of it; an unknown gain is not.
    profile_worst: against the measured gain: predicted / measured gain of the program where they
        differ most; 0 if a gain is unknown.
    one_user: against the same programs run plainly: mean time of one user's request accelerated /
        plain (lower is better; accepted: at most 1.03), the worst of the programs that one
        user asks; each was asked the same questions plainly before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bench.arms import bench_accelerator
from bench.profiled_programs import PROGRAMS, THREAD_SAFE
from bench.results import Row, SuiteResult, median_row, sizes_of
from bench.serving.processes import HostedServer
from rag_accel.cli.profile import profile_program

_logger = logging.getLogger("bench.profile")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The questions of each user, the programs measured, the seconds of a call for embeddings."""

    questions: int = 8
    programs: int = len(PROGRAMS)
    embedding_s: float = 0.08


QUICK = Sizes()
FULL = Sizes(questions=40)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    rows, ratios, alone = list[Row](), list[float](), list[float]()
    names = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in THREAD_SAFE)
    options: dict[str, Any] = {"thread_safe_classes": names, "hosted_cache_mb": 64}
    with HostedServer(call_s=chosen.embedding_s) as server:
        for program in PROGRAMS[: chosen.programs]:
            made, questions = program.make(server.url("/v1")), program.questions(chosen.questions)
            with bench_accelerator(**options) as accelerator:
                found = profile_program(made, questions, accelerator, program.users, measure=True)
            predicted, measured = found.predictions[0].gain, found.measured
            ratios.append(predicted / measured if predicted and measured else 0.0)
            _logger.info("%s: predicted %s, measured %s", program.name, predicted, measured)
            if measured and program.users == 1:
                alone.append(1 / measured)
                rows.append(median_row("accelerated / plain", program.name, "one_user", alone[-1:]))
            rows += [
                Row(system, program.name, "gain", gain, None, found.answered)
                for system, gain in (("predicted", predicted), ("accelerated", measured))
                if gain is not None
            ]
    within = sum(abs(ratio - 1) <= 0.2 for ratio in ratios) / len(ratios)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return SuiteResult(
        *("profile", tuple(rows)),
        {"profile_within_20": within, "profile_worst": worst, "one_user": max(alone)},
        scripted=True,
        sizes=sizes_of(chosen),
    )
