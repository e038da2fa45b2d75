"""Serve a language model of this process: SmolLM2 135M Instruct, in bfloat16 in both arms.

The chain is an ordinary LangChain chain, prompt, model and parser, over passages of real documents;
8 users each ``invoke`` it, or one does. Plain is langchain_huggingface's pipeline, given the prompt
by the model's own chat template, with the number of callers at once and of torch threads at which
it is fastest; ours is ``ChatRagAccel``, as the process is by itself. Arms take turns over the same
prompts, each turn others; answers are greedy, 64 tokens at most. Rates are in tokens of answers per
second, so that an answer that ends early counts as what it is.

No prompt begins as another does, so nothing is read from the prefix cache. Greedy texts in bfloat16
depend on what else is in a forward, in plain's own batches too: how many are equal is a row, and
not demanded.

``early_prefill`` is a graph whose prompt has a history of its own before what a search of 800 ms
(asleep) finds: with the pass ``split_prefill`` the history is computed meanwhile.

Rows without a ratio, in the full sizes only: prompts of 1500 tokens, transformers' own batching
(``generate_batch``), and milliseconds a token, prompt included, beside a thread that is busy in
Python.

Ratios:
    throughput_8: against langchain_huggingface's pipeline at its best callers and torch threads:
        tokens/s accelerated / plain with 8 users; median over turns.
    throughput_8_vs_batch: against langchain_huggingface's pipeline in batches of 8, by one call of
        batch: tokens/s accelerated, 8 users / its; median over turns.
    throughput_1: against langchain_huggingface's pipeline at its best torch threads: tokens/s
        accelerated / plain with one user; median over turns.
    ttft_1: against langchain_huggingface's pipeline at its best torch threads: time to the first
        text of one user's stream, accelerated / plain; median over streams.
    early_prefill: against ours with split_prefill off: time to the first text saved / the most that
        can be, the shorter of computing the prompt and of the search; median over turns.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.local_llm import answers, beside, first_token
from bench.local_llm.answers import BATCH, OURS, PLAIN, Setting
from bench.local_llm.chains import PlainModel, our_chain
from bench.local_llm.prompts import Prompts, spread
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.sample import read_corpus, smollm2_folder

_CHUNKS = 600

_logger = logging.getLogger("bench.serving")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        users: concurrent ones, and prompts of a batch.
        prompt: the least and the most tokens of a prompt.
        tokens: most tokens of an answer.
        turns: of several users.
        alone_prompts: of a turn of one user.
        alone_turns: of one user.
        tuning_tokens: of answers that look for plain's best setting.
        streams: turns of streams, of ``alone_prompts`` each.
        stream_tokens: most tokens of a stream.
        history: tokens before what is searched for.
        search_s: how long the search takes.
        early_turns: of that graph.
        long_prompt: tokens of long prompts.
        long_users: of them, at once.
        beside_tokens: of answers without a ratio; 0 for none of them.
    """

    users: int = 8
    prompt: tuple[int, int] = (200, 300)
    tokens: int = 64
    turns: int = 7
    alone_prompts: int = 3
    alone_turns: int = 5
    tuning_tokens: int = 24
    streams: int = 7
    stream_tokens: int = 4
    history: int = 1500
    search_s: float = 0.8
    early_turns: int = 9
    long_prompt: int = 1500
    long_users: int = 8
    beside_tokens: int = 16


QUICK = Sizes(turns=3, alone_turns=3, tuning_tokens=8, streams=3, early_turns=3, beside_tokens=0)
FULL = Sizes()


@dataclass(frozen=True, slots=True)
class Material:
    """A checkpoint's folder and the texts that prompts are made of; tests give small ones."""

    folder: str
    texts: Sequence[str]


def run(quick: bool, sizes: Sizes | None = None, material: Material | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over SmolLM2."""
    chosen = sizes or (QUICK if quick else FULL)
    bench = _Bench(chosen, material or _real_material())
    with little_garbage(), bench_accelerator() as accelerator:
        for part in (bench.several, bench.one, bench.streams, bench.without_ratio):
            part(accelerator)
            _logger.info("%s", bench.found)
    with little_garbage():
        bench.early()
    _logger.info("%s", bench.found)
    return SuiteResult(
        *("serving", tuple(bench.rows), bench.found), scripted=True, sizes=sizes_of(chosen)
    )


def _real_material() -> Material:
    corpus = read_corpus(_CHUNKS)
    return Material(str(smollm2_folder()), [one.text for one in corpus.documents])


class _Bench:
    """The measurements of one run, and what they found."""

    def __init__(self, sizes: Sizes, material: Material) -> None:
        self.rows: list[Row] = []
        self.found: dict[str, float] = {}
        self._sizes = sizes
        self._folder = str(Path(material.folder))
        self._plain = PlainModel(self._folder, sizes.users)
        self._prompts = Prompts(self._plain.tokenizer, material.texts)
        self._lengths = spread(sizes.users, *sizes.prompt)
        self._alone = spread(sizes.alone_prompts, *sizes.prompt)

    def several(self, fast: Accelerator) -> None:
        """Compare eight users with the pipeline's calls and with its batches."""
        sizes, model = self._sizes, self._plain
        asked = self._prompts.asked(self._lengths)
        setting = self._best(sorted({1, 2, sizes.users}), len(asked))
        threads = answers.best_batch_threads(model, asked, sizes.tuning_tokens)
        ours = answers.ours(our_chain(self._folder, fast, sizes.tokens), sizes.users)
        ours(self._prompts.asked(self._lengths))
        arms = {
            PLAIN: answers.called(model.chain(sizes.tokens), setting),
            BATCH: answers.batched(model.chain(sizes.tokens), threads),
            OURS: ours,
        }
        workload = f"{sizes.users} users"
        compared = answers.compare(workload, arms, self._prompts, self._lengths, sizes.turns)
        self.rows += [*_setting_rows(workload, setting), *compared.rows()]
        self.found["throughput_8"] = compared.gain(PLAIN)
        self.found["throughput_8_vs_batch"] = compared.gain(BATCH)

    def one(self, fast: Accelerator) -> None:
        """Compare one user."""
        sizes = self._sizes
        setting = self._best([1], sizes.alone_prompts)
        arms = {
            PLAIN: answers.called(self._plain.chain(sizes.tokens), setting),
            OURS: answers.ours(our_chain(self._folder, fast, sizes.tokens), 1),
        }
        compared = answers.compare("1 user", arms, self._prompts, self._alone, sizes.alone_turns)
        self.rows += [*_setting_rows("1 user", setting), *compared.rows()]
        self.found["throughput_1"] = compared.gain(PLAIN)

    def streams(self, fast: Accelerator) -> None:
        """Compare the time to the first text of one user's stream."""
        sizes = self._sizes
        rows, self.found["ttft_1"] = first_token.compare_streams(
            *(self._plain, fast, self._prompts, self._alone, sizes.stream_tokens, sizes.streams)
        )
        self.rows += rows

    def early(self) -> None:
        """Measure what is gained by computing a prompt's beginning while a search runs."""
        sizes = self._sizes
        found = first_token.early_prefill(
            self._folder,
            self._prompts,
            sizes.history,
            sizes.search_s,
            sizes.stream_tokens,
            sizes.early_turns,
        )
        self.rows += found.rows(sizes.history)
        self.found["early_prefill"] = found.share

    def without_ratio(self, fast: Accelerator) -> None:
        """Measure what no claim rests on, if it is wanted."""
        sizes, model = self._sizes, self._plain
        tokens = sizes.beside_tokens
        if not tokens:
            return
        plain, ours = model.chain(tokens), our_chain(self._folder, fast, tokens)
        one = {PLAIN: answers.called(plain, Setting(1, 1)), OURS: answers.ours(ours, 1)}
        self.rows += beside.beside_busy_thread(one, self._prompts, self._alone[:1])
        users = sizes.long_users
        long_prompts = {
            PLAIN: answers.called(plain, Setting(1, answers.most_threads())),
            OURS: answers.ours(ours, users),
        }
        lengths = [sizes.long_prompt] * users
        workload = f"{users} users, prompts of {sizes.long_prompt} tokens"
        self.rows += answers.compare(workload, long_prompts, self._prompts, lengths, 1).rows()
        self._continuous(tokens)

    def _continuous(self, tokens: int) -> None:
        arm = beside.continuous_batching(self._plain, tokens, answers.most_threads())
        if arm is None:
            return
        batch = answers.batched(self._plain.chain(tokens), answers.most_threads())
        workload = f"{self._sizes.users} prompts at once, answers of {tokens} tokens"
        arms = {PLAIN: batch, beside.GENERATE_BATCH: arm}
        self.rows += answers.compare(workload, arms, self._prompts, self._lengths, 1).rows()

    def _best(self, callers: Sequence[int], prompts: int) -> Setting:
        asked = self._prompts.asked(self._lengths[:prompts])
        return answers.best_setting(self._plain, asked, callers, self._sizes.tuning_tokens)


def _setting_rows(workload: str, setting: Setting) -> list[Row]:
    return [
        Row(PLAIN, workload, "callers", setting.callers, None, 1),
        Row(PLAIN, workload, "torch_threads", setting.threads, None, 1),
    ]
