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

An opponent that cannot run here is a row ``missing`` with its reason, and its ratio is left out.

Ratios:
    throughput_8_vs_cb: against transformers' generate_batch (continuous batching), 8 prompts a
        call: tokens/s accelerated with 8 users / its; median over turns.
    throughput_8_vs_genai: against openvino-genai's ContinuousBatchingPipeline, 8 prompts a call:
        tokens/s accelerated with 8 users / its; median over turns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.local_llm import answers
from bench.local_llm.answers import OURS, Compared
from bench.local_llm.chains import PlainModel, our_chain
from bench.local_llm.choices import missing_row
from bench.local_llm.peers import CONTINUOUS, GENAI, PEERS, Opened, PeerError, opened
from bench.local_llm.prompts import Prompts, spread
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.sample import read_corpus, smollm2_folder

_CHUNKS = 600
RATIOS = {CONTINUOUS: "throughput_8_vs_cb", GENAI: "throughput_8_vs_genai"}
FIRST, SHARE = "first_tokens_equal_to_accelerated", "equal_texts_share"
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
    """

    users: int = 8
    prompt: tuple[int, int] = (200, 300)
    tokens: int = 64
    turns: int = 7
    exact_tokens: int = 32


QUICK = Sizes(turns=3)
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
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL)
    given = material or _real_material()
    rows: list[Row] = []
    found: dict[str, float] = {}
    with little_garbage(), bench_accelerator() as accelerator:
        for name, open_peer in peers.items():
            bench = _Bench(chosen, given, accelerator, name, open_peer)
            for part in (bench.rates, bench.texts):
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
