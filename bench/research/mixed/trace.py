"""Make the requests of a run: real questions, real text for every answer, Poisson arrivals.

What the emulated model says is fixed beforehand and is a function of the prompt's template and its
last question alone, so that every system generates the same texts and searches for the same ones,
whatever it retrieves. All texts are real: the passage that HyDE makes up is the one the question
was made from, cut to the drawn length; the parts of a split question are consecutive pieces of that
passage; every other answer is its beginning, continued by the next passage where it is too short.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bench.corpus import Passages
from rag_accel.engine_api import Message
from rag_accel.errors import ConfigError
from rag_accel.workflows import prompts
from rag_accel.workflows.steps import Questions, joined

MIN_WORDS, MAX_WORDS = 30, 150
MAX_PARTS = 4
PART_WORDS = 22
DECOMPOSE = prompts.DECOMPOSE.replace("{count}", str(MAX_PARTS))
_QUESTION = "\nQuestion: "


class Workflow(StrEnum):
    """The workflows of HedraRAG section 6."""

    ONE_SHOT = "one_shot"
    HYDE = "hyde"
    MULTISTEP = "multistep"
    IRG = "irg"
    RECOMP = "recomp"


Mix = tuple[tuple[Workflow, int], ...]
"""Workflows, and how many requests of each come in a round."""

EVEN: Mix = tuple((workflow, 1) for workflow in Workflow)


@dataclass(frozen=True, slots=True)
class Request:
    """One question of one workflow.

    Args:
        number: its place in the trace.
        workflow: which one.
        question: what is asked.
        last_query: the text of its last search.
        answer: what the model says in the end.
    """

    number: int
    workflow: Workflow
    question: str
    last_query: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, what is answered to their prompts, and what they search for.

    Args:
        requests: in the order in which they arrive; workflows as often as the mix says.
        answers: the text for (opening of the prompt, question in it).
        queries: every text that is searched for, each once.
    """

    requests: tuple[Request, ...]
    answers: Mapping[tuple[str, str], str]
    queries: tuple[str, ...]

    def respond(self, messages: tuple[Message, ...]) -> str:
        """Return the answer to a prompt.

        Raises:
            ConfigError: if no request of this trace leads to it.
        """
        key = _key(messages[-1].content)
        if key not in self.answers:
            raise ConfigError("a prompt that is not of the trace", found=repr(key))
        return self.answers[key]


def make_trace(passages: Passages, count: int, seed: int, mix: Mix = EVEN) -> Trace:
    """Make ``count`` requests over the questions of the passages, each asked once.

    Raises:
        ConfigError: if there are too few questions, or no workflows.
    """
    workflows = [workflow for workflow, times in mix for _ in range(times)]
    if not workflows:
        raise ConfigError("no workflows to mix", found=repr(mix), valid="at least one, once")
    order = random.Random(seed)
    asked = list(passages.questions)
    order.shuffle(asked)
    writer = _Writer(passages.texts, order)
    requests: list[Request] = []
    for question, place in asked:
        if len(requests) == count:
            break
        if not len(requests) % len(workflows):
            order.shuffle(workflows)
        workflow = workflows[len(requests) % len(workflows)]
        written = writer.write(workflow, question, place)
        if written is not None:
            requests.append(Request(len(requests), workflow, question, *written))
    if len(requests) < count:
        raise ConfigError(
            "too few questions for a trace", found=len(requests), valid=f"at least {count}"
        )
    return Trace(tuple(requests), writer.answers, tuple(writer.queries))


def poisson_arrivals(rate_rps: float, window_s: float, seed: int) -> list[float]:
    """Return the times, from 0 and below ``window_s``, of a Poisson process; rising, in seconds.

    Equal seeds at two rates give the same arrivals on another scale of time.

    Raises:
        ConfigError: if the rate is not positive.
    """
    if rate_rps <= 0:
        raise ConfigError("bad arrival rate", found=rate_rps, valid="above 0 per second")
    draws = random.Random(seed)
    times: list[float] = []
    now = draws.expovariate(1.0) / rate_rps
    while now < window_s:
        times.append(now)
        now += draws.expovariate(1.0) / rate_rps
    return times


def pieces(text: str) -> list[str]:
    """Return a passage cut into one-line pieces of ``PART_WORDS`` words, without a shorter rest."""
    words = text.split()
    whole = range(0, max(1, len(words) - PART_WORDS + 1), PART_WORDS)
    return [" ".join(words[start : start + PART_WORDS]) for start in whole]


class _Writer:
    """Answers and queries; a request whose prompts another one has is turned away."""

    def __init__(self, texts: Sequence[str], draws: random.Random) -> None:
        self._texts = texts
        self._draws = draws
        self.answers: dict[tuple[str, str], str] = {}
        self.queries: dict[str, None] = {}

    def write(self, workflow: Workflow, question: str, place: int) -> tuple[str, str] | None:
        """Return the text of the last search and the last answer; None if turned away."""
        answers: dict[tuple[str, str], str] = {}
        queries = [question]

        def answer(template: str, asked: str, text: str) -> None:
            answers[opening(template), asked] = text

        final = self._text(place)
        match workflow:
            case Workflow.ONE_SHOT:
                answer(prompts.ANSWER, question, final)
            case Workflow.HYDE:
                queries = [self._text(place)]
                answer(prompts.HYPOTHESIS, question, queries[0])
                answer(prompts.ANSWER, question, final)
            case Workflow.MULTISTEP:
                plan = "\n".join(pieces(self._texts[place])[: self._draws.randint(2, MAX_PARTS)])
                queries = list(Questions(MAX_PARTS)(plan, question))
                answer(DECOMPOSE, question, plan)
                for number, part in enumerate(queries, start=1):
                    answer(prompts.ANSWER_STEP, part, self._text(place + number))
                answer(prompts.ANSWER_FROM_NOTES, question, final)
            case Workflow.IRG:
                queries = [question, joined(question, final)]
                answer(prompts.ANSWER, question, final)
            case Workflow.RECOMP:
                answer(prompts.COMPRESS, question, self._text(place))
                answer(prompts.ANSWER_FROM_SUMMARY, question, final)
        if not answers.keys().isdisjoint(self.answers):
            return None
        self.answers.update(answers)
        self.queries.update(dict.fromkeys(queries))
        return queries[-1], final

    def _text(self, place: int) -> str:
        """Return words of passages from ``place`` on, as many as are drawn."""
        wanted = self._draws.randint(MIN_WORDS, MAX_WORDS)
        words: list[str] = []
        while len(words) < wanted:
            words += self._texts[place % len(self._texts)].split()
            place += 1
        return " ".join(words[:wanted])


def opening(template: str) -> str:
    """Return the first line of a prompt, by which its template is known."""
    return template.partition("\n")[0]


def _key(prompt: str) -> tuple[str, str]:
    question = prompt.rpartition(_QUESTION)[2].partition("\n")[0]
    return opening(prompt), question
