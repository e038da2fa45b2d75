"""Measure the time to vLLM's first token of prompts whose texts it has seen in another order.

vLLM for processors, unpatched, in the environment of ``make test-vllm``, with our connector and
worker class; a Llama of random weights in bfloat16 (hidden size 768, 10 layers, 12 heads of 64 and
4 of keys and values, SwiGLU of 2048), one thread, prefix caching on. A prompt is a head, 8 texts of
512 tokens in an order that was never asked for, and a question. The opponent is vLLM's own prefill
of the same prompt. Ours takes the states of all texts as they are (``full``), or computes 15 % of
their tokens again (``fused``); they are in the worker's memory, or in files that the system has
read. A last arm has the texts in the order that vLLM's prefix cache knows.

Times are from the call of ``LLM.generate`` to the end of an answer of one token. Over HTTP a user
alone is measured, too: the same ``ChatOpenAI`` as it is and adopted, whose prompts hold no text.

Where the environment is missing there is one row, ``missing``.

With random weights answers tell little; equal first tokens are a row. That all tokens computed
again is vLLM's own answer is demanded.

Ratios:
    reuse_vs_full: against vLLM's own prefill: its time to the first token / ours with all texts
        reused; median over turns.
    rows15_vs_full: against vLLM's own prefill: its time to the first token / ours with 15 % of the
        texts' tokens computed again; median over turns.
    one_user: against the plain client over HTTP, prompts without a text: the time of the adopted
        one's call / its (lower is better; accepted: at most 1.03); median over pairs.
    files_over_host: the time with states in files / that with states in memory (lower is better);
        median over turns.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.baselines.peer_process import PeerProcess
from bench.local_llm.choices import missing_row
from bench.measure import median
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.vllm.client_load import measure_user, served
from rag_accel.kv.reuse_request import ReuseRequest

ROOT = Path(__file__).parents[2]
PYTHON = Path(".venv-vllm/bin/python")
#: The package of this checkout, whichever was installed.
_ENV = {"PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "adapters")))}
SCRIPT = Path(__file__).parents[1] / "vllm" / "engine_load.py"
FULL_PREFILL, PREFIX = "vLLM, prefill", "vLLM, same order"
MEMORY, FILES, ROWS = "texts reused, memory", "texts reused, files", "15 % computed again"
PLAIN_CLIENT, ADOPTED = "ChatOpenAI", "ChatOpenAI, adopted"
#: How far logprobs in bfloat16 may be apart where all tokens are computed again.
_APART = 0.05
_logger = logging.getLogger("bench.vllm_ttft")


@dataclass(frozen=True, slots=True)
class Shape:
    """The model of random weights, by the names of transformers' settings."""

    hidden_size: int = 768
    num_hidden_layers: int = 10
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 2048
    vocab_size: int = 32_000
    context: int = 8192


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        shape: of the model.
        texts: of a prompt.
        tokens: of a text.
        head: tokens in front of the texts.
        question: tokens behind them.
        turns: of each arm.
        calls: over HTTP, of each client.
        answer: tokens of an answer over HTTP.
    """

    shape: Shape = field(default_factory=Shape)
    texts: int = 8
    tokens: int = 512
    head: int = 32
    question: int = 32
    turns: int = 7
    calls: int = 60
    answer: int = 16


QUICK = Sizes(turns=3, calls=20)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None, python: Path = PYTHON) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    with tempfile.TemporaryDirectory() as folder:
        try:
            process = _process(python, Path(folder), chosen.shape)
        except FileNotFoundError as error:
            rows = (missing_row("vLLM", f"{error}; make test-vllm"),)
            return SuiteResult("vllm_ttft", rows, {}, sizes=_said(chosen))
        with process:
            found = _Bench(chosen, process).result()
        with served(python, Path(folder) / "model", Path(folder) / "states", _ENV) as server:
            pairs = measure_user(server, chosen.calls, chosen.answer)
    rows = [
        row_of(name, "one user over HTTP", "call_ms", [seconds * 1e3 for seconds in times])
        for name, times in ((PLAIN_CLIENT, pairs.plain), (ADOPTED, pairs.other))
    ]
    ratios = [ours / plain for plain, ours in zip(pairs.plain, pairs.other, strict=True)]
    return replace(
        found,
        rows=(*found.rows, *rows),
        ratios={**found.ratios, "one_user": median(ratios)},
    )


def _process(python: Path, folder: Path, shape: Shape) -> PeerProcess:
    values = {name: getattr(shape, name) for name in Shape.__dataclass_fields__}
    arguments = str(folder / "model"), str(folder / "states"), json.dumps(values)
    return PeerProcess(python, SCRIPT, *arguments, env=_ENV)


def _said(sizes: Sizes) -> dict[str, Any]:
    return sizes_of(sizes)


class _Bench:
    """One engine's prompts."""

    def __init__(self, sizes: Sizes, process: PeerProcess) -> None:
        self._sizes = sizes
        self._process = process
        self._draw = random.Random(0)
        self._head = self._ids(sizes.head)
        self._texts = [self._ids(sizes.tokens) for _ in range(sizes.texts)]
        self._times: dict[str, list[float]] = {}
        self._equal: dict[str, list[bool]] = {}
        self._wrong: list[str] = []

    def result(self) -> SuiteResult:
        """Return what was measured."""
        filled = self._fill()
        self._check()
        for turn in range(self._sizes.turns + 1):
            order, question = self._order(), self._ids(self._sizes.question)
            found = {arm: self._first(arm, order, question) for arm in self._arms(turn)}
            if turn:  # the first warms up
                for arm, answer in found.items():
                    self._times.setdefault(arm, []).append(answer["seconds"] * 1e3)
                    is_equal = answer["token"] == found[FULL_PREFILL]["token"]
                    self._equal.setdefault(arm, []).append(is_equal)
            _logger.info("%s", {arm: answer["seconds"] for arm, answer in found.items()})
        return SuiteResult(
            "vllm_ttft",
            tuple(self._rows(filled)),
            self._ratios(),
            sizes=_said(self._sizes),
            wrong=tuple(self._wrong),
        )

    def _arms(self, turn: int) -> Sequence[str]:
        arms = [FULL_PREFILL, MEMORY, FILES, ROWS]
        at = turn % len(arms)
        return [*arms[at:], *arms[:at], PREFIX]

    def _first(self, arm: str, order: Sequence[int], question: Sequence[int]) -> dict[str, Any]:
        ids = self._prompt(order, question)
        if arm != PREFIX:  # no order but the last is known to the prefix cache
            self._process.ask({"forget": "prefix"})
        if arm in (FULL_PREFILL, PREFIX):
            if arm == PREFIX:
                self._ask(self._prompt(order, self._ids(len(question))), None)
            return self._ask(ids, None)
        if arm == FILES:
            self._process.ask({"forget": "memory"})
        return self._ask(ids, self._request("fused" if arm == ROWS else "full", question))

    def _fill(self) -> list[float]:
        """Return the milliseconds of each text's filling."""
        times: list[float] = []
        head = len(self._head)
        for text in self._texts:
            request = ReuseRequest("exact", spans=((head, head + len(text)),), head=head)
            times.append(self._ask([*self._head, *text], request)["seconds"] * 1e3)
        return times

    def _check(self) -> None:
        """Demand that all tokens computed again are the prompt computed as a whole."""
        order, question = self._order(), self._ids(self._sizes.question)
        ids = self._prompt(order, question)
        whole = self._ask(ids, None)
        again = self._ask(ids, self._request("fused", question, ratio=1.0))
        said = (again["said"] or {}).get("rag_accel", {})
        if said.get("recomputed_tokens") != self._sizes.texts * self._sizes.tokens:
            self._wrong.append(f"not all tokens were computed again: {said}")
        if abs(whole["logprob"] - again["logprob"]) > _APART:
            self._wrong.append(f"all computed again: {again}, as a whole: {whole}")

    def _request(self, reuse: Any, question: Sequence[int], ratio: float = 0.15) -> ReuseRequest:
        head, tokens = self._sizes.head, self._sizes.tokens
        starts = range(head, head + tokens * self._sizes.texts, tokens)
        spans = tuple((start, start + tokens) for start in starts)
        asked = ",".join(map(str, question)) if reuse == "fused" else ""
        return ReuseRequest(reuse, spans=spans, head=head, ratio=ratio, question=asked)

    def _ask(self, ids: Sequence[int], request: ReuseRequest | None) -> dict[str, Any]:
        fields: Mapping[str, Any] = {} if request is None else request.fields()
        return self._process.ask({"ids": list(ids), "fields": fields})

    def _prompt(self, order: Sequence[int], question: Sequence[int]) -> list[int]:
        texts = [token for at in order for token in self._texts[at]]
        return [*self._head, *texts, *question]

    def _order(self) -> list[int]:
        return self._draw.sample(range(self._sizes.texts), self._sizes.texts)

    def _ids(self, count: int) -> list[int]:
        return [self._draw.randrange(300, self._sizes.shape.vocab_size) for _ in range(count)]

    def _rows(self, filled: Sequence[float]) -> list[Row]:
        workload = f"{self._sizes.texts} texts of {self._sizes.tokens} tokens"
        rows = [
            row_of(arm, workload, "first_token_ms", times) for arm, times in self._times.items()
        ]
        for arm, equal in self._equal.items():
            share = sum(equal) / len(equal)
            rows.append(Row(arm, workload, "first_tokens_equal_share", share, None, len(equal)))
        rows.append(row_of("filling", workload, "text_ms", filled))
        return rows

    def _ratios(self) -> dict[str, float]:
        def over(one: str, other: str) -> float:
            pairs = zip(self._times[one], self._times[other], strict=True)
            return median([first / second for first, second in pairs])

        return {
            "reuse_vs_full": over(FULL_PREFILL, MEMORY),
            "rows15_vs_full": over(FULL_PREFILL, ROWS),
            "files_over_host": over(FILES, MEMORY),
        }
