"""Measure what each mechanism is worth to ordinary programs: alone, and left out of all of them.

The programs are those of frameworks in the suite ``together``, unchanged: a LangChain chain and a
LangGraph agent over ``FAISS``, ``HuggingFaceEmbeddings`` and ``ChatHuggingFace``, and a LlamaIndex
query engine over ``HuggingFaceEmbedding`` and ``HuggingFaceLLM`` (SmolLM2 135M Instruct in float32,
greedy, MiniLM). An arm is one accelerator that runs all three; ``none`` is the programs as they
are. Its mechanisms are switched by options of ``Accelerator`` alone: batching over requests
(``max_batch=1`` without it), the compiled embedding model (``embedding_runtime="torch"``), the
local engine for the programs' own language model (``adopt_llm="off"``), passes
(``passes="none"``), and the order of a graph's calls (``use_skeleton=False``). Two are off by
default, and added to all: a device group of the same model in a second process on the same cores
(``embedder=["cpu", ProcessMember()]``), and the reuse of chunks (``kv_reuse="full"``), which is
approximate.

One user asks, or 16 at once; every third question goes to the same program. Where the language
model is the program's own, so many callers ask at once, on so many torch threads, as answer soonest
(one user has the threads of all cores). Arms take turns over the same questions, each turn others.
All exact arms must give the same answers. Row ``worth`` of an arm that has one mechanism alone, or
all without it, says how many times faster requests are with that mechanism; of what is off by
default, added to all, likewise (chunk reuse alone is held against the local engine alone); median
over turns. Where a model stays off the devices listed, row ``missing`` stands for the ratio of the
group. ``--set turns=5`` has five turns. All arms are open at a time: nine local engines and two
processes.

Ratios:
    all_on_vs_best_single: against the fastest of the same programs with one mechanism: their time /
        that with all that are on by default, 16 users; median over turns.
    all_on_vs_none: against the same programs as they are: their time / that with all mechanisms
        that are on by default, 16 users; median over turns.
    all_on_vs_none_1: against the same programs as they are: the same for one user.
    leave_one_out_worst: against the same programs without one mechanism: time with all / without
        it (lower is better), the highest over mechanisms that are on by default and numbers of
        users; median over turns.
    leave_one_out_devices: against the same programs without a device group: time with all and the
        group / with all (lower is better), the higher of one user and 16: the group's members share
        all cores here; median over turns.
    leave_one_out_reuse: against the same programs without the reuse of chunks: time with all and
        reuse / with all (lower is better), the higher of one user and 16; median over turns.
    share_batching: against all mechanisms that are on by default: its share of their gain, 16
        users. A share is the logarithm of the geometric mean of the gain alone and the gain in
        addition to all others, of the sum of these over mechanisms.
    share_compiled_embedding: against all mechanisms that are on by default: its share of their
        gain, 16 users.
    share_local_engine: against all mechanisms that are on by default: its share of their gain, 16
        users.
    share_passes: against all mechanisms that are on by default: its share of their gain, 16 users.
    share_skeleton_order: against all mechanisms that are on by default: its share of their gain, 16
        users.
    one_user: against the same programs as they are, on torch threads for all cores: time of one
        user's answer, with all that are on by default / without (lower is better; accepted: at most
        1.03); median over turns, the worst of the three programs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, cast

from bench.answers import too_many
from bench.garbage import little_garbage
from bench.loads import lone_ms
from bench.local_llm.choices import missing_row
from bench.measure import Pairs, median, rotate
from bench.paired import one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.together.arms import EXACT, Mechanism, added_name, alone_name, arms, share_name
from bench.together.load import best_setting
from bench.together.material import Material, real_material
from bench.together.parts import ArmPrograms, Question, opened
from bench.together.programs import LCEL, PROGRAMS, Arm, written_programs
from bench.together.shares import WORTH, Times, best_single, gain, shares, worths
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.errors import ConfigError
from rag_accel_demo.load import Load, run_load

METRIC, ON_DEVICES = "answer_s", "models_on_devices"
_PATIENCE_S = 120.0
_logger = logging.getLogger("bench.mechanisms")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: who ask at once, one question each a turn.
        alone: questions of a turn of one user, as many to each program.
        turns: of each arm, for one user and for many.
        chunks: texts that are searched.
        words: of each of them at most; 0 for all.
        tokens: most of an answer.
        tuning: questions that look for the plain model's best setting.
    """

    users: int = 16
    alone: int = 3
    turns: int = 5
    chunks: int = 600
    words: int = 0
    tokens: int = 8
    tuning: int = 8


QUICK = Sizes(turns=3, words=20, tokens=4, tuning=4)
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
    asked = (chosen.users + chosen.alone) * chosen.turns + len(PROGRAMS) + 1
    made = material or real_material(chosen.chunks, 1_000, asked)
    with little_garbage():
        found, on_devices = _measured(made.of_words(chosen.words), chosen)
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
    more, alone = one_user(_alone(found["1 user"]))
    rows += more
    ratios |= alone
    rows += [Row(arm, "embedders", ON_DEVICES, count, None, 1) for arm, count in on_devices.items()]
    if not all(on_devices.values()):
        rows.append(missing_row("device group", "a model stayed off the devices listed"))
        del ratios["leave_one_out_devices"]
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
        "leave_one_out_worst": max(map(cost, EXACT)),
        "leave_one_out_devices": cost(Mechanism.DEVICES),
        "leave_one_out_reuse": cost(Mechanism.REUSE),
        **{share_name(each): share for each, share in shares(worth[0]).items()},
    }


_DIFFERENT = "different_answers"
Loads = Mapping[str, Sequence[Load]]
"""What each arm gave, turn by turn."""


def _measured(material: Material, sizes: Sizes) -> tuple[dict[str, Loads], dict[str, int]]:
    """Return what every arm gave to many users and to one, and models on devices of a list."""
    written = written_programs(material, sizes.tokens)
    tuning, rest = material.questions[: sizes.tuning], iter(material.questions)
    setting = best_setting(written[LCEL].plain, tuning, sizes.users)
    _logger.info("plain is fastest with %s", setting)
    found: dict[str, Loads] = {}
    write = partial(written_programs, material, sizes.tokens)
    with opened(arms(), write, setting) as programs:
        first = list(zip(written, rest, strict=False))
        for name, program in programs.items():
            _load(program, 1, first)
            _logger.info("%s is ready", name)
        wait_until_compiled(_PATIENCE_S)
        for users, count in ((sizes.users, sizes.users), (1, sizes.alone)):
            each = cycle(written)
            asked = [[(next(each), next(rest)) for _ in range(count)] for _ in range(sizes.turns)]
            name = f"{users} user{'s' if users > 1 else ''}"
            found[name] = _in_turns(programs, users, asked)
            _log(name, found[name])
        listing = {name: one for name, one in programs.items() if Mechanism.DEVICES in arms()[name]}
        return found, {name: one.num_on_devices for name, one in listing.items()}


def _in_turns(
    programs: Mapping[str, ArmPrograms], users: int, asked: Sequence[Sequence[Question]]
) -> Loads:
    def arm(program: ArmPrograms, turn: int) -> Load:
        return _load(program, users, asked[turn])

    return rotate({name: partial(arm, one) for name, one in programs.items()}, len(asked))


def _load(program: ArmPrograms, users: int, asked: Sequence[Question]) -> Load:
    with program.threads(users):
        return run_load(Arm(program.ask), cast("Any", asked), program.callers(users), "threads")


def _alone(loads: Loads) -> dict[str, Pairs[float]]:
    """Return the ms of one user's answers by program, as it is and with all mechanisms."""
    pairs = lone_ms(Pairs(tuple(loads["none"]), tuple(loads["all"])))
    count = len(PROGRAMS)
    return {
        f"{name}, 1 user": Pairs(pairs.plain[at::count], pairs.other[at::count])
        for at, name in enumerate(PROGRAMS)
    }


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
