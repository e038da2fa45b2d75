"""Measure what each mechanism of a whole program is worth: alone, and left out of all of them.

The program is the ``RAGraph`` of the suite ``together``: vectors and a knowledge graph searched, a
reranking, an answer of at most 8 greedy tokens (SmolLM2 135M Instruct in float32, MiniLM). Its
mechanisms are batching over requests, the compiled embedding model (which reranks, too), a device
group (the same model in a second process on the same cores), the graph stage, the local engine,
passes, and the reuse of chunks, which is approximate and therefore never part of ``all``. What an
arm lacks is what a user would have in its place: steps of one request (``max_batch=1``), models on
torch, one embedder, a function that embeds all paths by ``encode``, one that calls ``generate``,
with the callers at once and torch threads at which that is fastest (one user has the threads of all
cores), and no pass. The reuse of chunks by itself has the local engine, and is compared with that.

One user asks, or 16 at once. Arms take turns over the same questions, each turn others. All exact
arms must give the same answers. Row ``worth`` of an arm that has one mechanism alone, or all
without it, says how many times faster requests are with that mechanism; of chunk reuse, which is
added to the local engine alone and to all, likewise; median over turns. The quick form cuts the
texts and has two turns; ``--set turns=5`` has five. All arms are open at a time: nine local engines
and eight processes of device groups took 23 GB of memory in five turns of the quick form.

Ratios:
    all_on_vs_best_single: against the fastest of the same program with one exact mechanism: its
        time / that with all of them, 16 users; median over turns.
    all_on_vs_none: against the same program with no mechanism: its time / that with all exact ones,
        16 users; median over turns.
    all_on_vs_none_1: against the same program with no mechanism: the same for one user.
    leave_one_out_worst: against the same program without one exact mechanism: time with all /
        without it (lower is better), the highest over mechanisms and numbers of users, a device
        group that shares its cores left out: off by default; median over turns.
    leave_one_out_devices: against the same program without a device group: time with all / without
        it (lower is better), the higher of one user and 16: the group's members share all cores
        here; median over turns.
    leave_one_out_reuse: against the same program without the reuse of chunks: time with all and
        reuse / with all (lower is better), the higher of one user and 16; median over turns.
    share_batching: against all exact mechanisms together: its share of their gain, 16 users. A
        share is the logarithm of the geometric mean of the gain alone and the gain in addition to
        all others, of the sum of these over mechanisms.
    share_compiled_embedding: against all exact mechanisms together: its share of their gain, 16
        users.
    share_device_group: against all exact mechanisms together: its share of their gain, 16 users.
    share_graph_stage: against all exact mechanisms together: its share of their gain, 16 users.
    share_local_engine: against all exact mechanisms together: its share of their gain, 16 users.
    share_passes: against all exact mechanisms together: its share of their gain, 16 users.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from bench.answers import too_many
from bench.garbage import little_garbage
from bench.measure import median, rotate
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.together.arms import EXACT, Mechanism, added_name, alone_name, arms, share_name
from bench.together.load import best_setting
from bench.together.material import Asked, Material, real_material
from bench.together.parts import Answers, Kept, Program, opened
from bench.together.programs import Arm, plain_answer
from bench.together.shares import WORTH, Times, best_single, gain, shares, worths
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.errors import ConfigError
from rag_accel_demo.load import Load, run_load

METRIC = "answer_s"
_PATIENCE_S = 120.0
_WARM_UP = 2
_logger = logging.getLogger("bench.mechanisms")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: who ask at once, one question each a turn.
        alone: questions of a turn of one user.
        turns: of each arm, for one user and for many.
        chunks: texts that are searched.
        words: of each of them at most; 0 for all.
        triples: of the knowledge graph.
        kept: what stands in a prompt.
        answers: how the language model answers.
        tuning: questions that look for the plain model's best setting.
    """

    users: int = 16
    alone: int = 4
    turns: int = 5
    chunks: int = 600
    words: int = 0
    triples: int = 20_000
    kept: Kept = field(default_factory=lambda: Kept(6, 3, 4))
    answers: Answers = field(default_factory=lambda: Answers(8, 640))
    tuning: int = 8


QUICK = Sizes(turns=2, words=40, kept=Kept(4, 1, 2), answers=Answers(8, 256), tuning=4)
FULL = Sizes()


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes that ``quick`` stands for, with another number of ``turns``.

    Raises:
        ConfigError: on an unknown parameter, or a value it cannot have.
    """
    sizes = QUICK if quick else FULL
    for name, text in settings.items():
        if name != "turns" or not text.isdecimal() or not 1 <= int(text) <= 99:
            raise ConfigError(
                "no such parameter, or no value of it",
                where="mechanisms",
                found=f"{name}={text}",
                valid="turns=1 to turns=99",
            )
        sizes = replace(sizes, turns=int(text))
    return sizes


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over real models."""
    chosen = sizes or (QUICK if quick else FULL)
    asked = (chosen.users + chosen.alone) * chosen.turns + _WARM_UP
    made = material or real_material(chosen.chunks, chosen.triples, asked)
    if chosen.words:
        made = replace(made, texts=[" ".join(one.split()[: chosen.words]) for one in made.texts])
    with little_garbage():
        found = _measured(made, chosen)
    times = {
        users: {arm: [load.wall_s / len(load.answers) for load in each] for arm, each in by.items()}
        for users, by in found.items()
    }
    rows = [
        row_of(arm, users, METRIC, each) for users, by in times.items() for arm, each in by.items()
    ]
    rows += [row for users, by in times.items() for row in _worth_rows(users, by)]
    rows += [row for users, by in found.items() for row in _differences(users, by)]
    ratios = _ratios(many=times[f"{chosen.users} users"], one=times["1 user"])
    wrong = too_many([row for row in rows if Mechanism.REUSE not in row.system], _DIFFERENT)
    return SuiteResult("mechanisms", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


def _worth_rows(users: str, times: Times) -> list[Row]:
    turns = len(times["none"])
    return [
        Row(arm, users, WORTH, factor, None, turns)
        for one, worth in worths(times).items()
        for arm, factor in ((alone_name(one), worth.alone), (added_name(one), worth.left_out))
    ]


def _ratios(many: Times, one: Times) -> dict[str, float]:
    worth = worths(many), worths(one)

    def cost(mechanism: Mechanism) -> float:
        """Return the time with it / without it, the higher of one user's and many users'."""
        return max(1 / found[mechanism].left_out for found in worth)

    return {
        "all_on_vs_best_single": gain(many, best_single(many), "all"),
        "all_on_vs_none": gain(many, "none", "all"),
        "all_on_vs_none_1": gain(one, "none", "all"),
        "leave_one_out_worst": max(cost(each) for each in EXACT if each is not Mechanism.DEVICES),
        "leave_one_out_devices": cost(Mechanism.DEVICES),
        "leave_one_out_reuse": cost(Mechanism.REUSE),
        **{share_name(each): share for each, share in shares(worth[0]).items()},
    }


_DIFFERENT = "different_answers"
Loads = Mapping[str, Sequence[Load]]
"""What each arm gave, turn by turn."""


def _measured(material: Material, sizes: Sizes) -> dict[str, Loads]:
    """Return what every arm gave to many users and to one."""
    questions = list(material.questions)
    setting = best_setting(
        partial(plain_answer, material, sizes.answers.tokens),
        questions[: sizes.tuning],
        sizes.users,
    )
    _logger.info("plain is fastest with %s", setting)
    found: dict[str, Loads] = {}
    with opened(arms(), material, sizes.kept, sizes.answers, setting) as programs:
        for name, program in programs.items():
            _load(program, _WARM_UP, questions[:_WARM_UP])
            _logger.info("%s is ready", name)
        wait_until_compiled(_PATIENCE_S)
        rest = questions[_WARM_UP:]
        for users, each in ((sizes.users, sizes.users), (1, sizes.alone)):
            asked = [rest[turn * each :][:each] for turn in range(sizes.turns)]
            rest = rest[sizes.turns * each :]
            name = f"{users} user{'s' if users > 1 else ''}"
            found[name] = _in_turns(programs, users, asked)
            _log(name, found[name])
    return found


def _in_turns(
    programs: Mapping[str, Program], users: int, asked: Sequence[Sequence[Asked]]
) -> Loads:
    def arm(program: Program, turn: int) -> Load:
        return _load(program, users, asked[turn])

    return rotate({name: partial(arm, one) for name, one in programs.items()}, len(asked))


def _load(program: Program, users: int, asked: Sequence[Asked]) -> Load:
    with program.threads(users):
        return run_load(Arm(program.ask), cast("Any", asked), users, "threads")


def _log(users: str, loads: Loads) -> None:
    for name, each in loads.items():
        wall_s = median([load.wall_s / len(load.answers) for load in each])
        _logger.info("%s, %s: %.3f s an answer", users, name, wall_s)


def _differences(users: str, loads: Loads) -> list[Row]:
    """Count the answers of each arm that are not those of the program without any mechanism."""
    right = [answer for load in loads["none"] for answer in load.answers]
    return [
        Row(name, users, _DIFFERENT, _unequal(right, each), None, len(right))
        for name, each in loads.items()
    ]


def _unequal(right: Sequence[str], loads: Sequence[Load]) -> int:
    given = [answer for load in loads for answer in load.answers]
    return sum(one != other for one, other in zip(right, given, strict=True))
