"""Serve a language model of this process: SmolLM2 135M Instruct, in bfloat16 in both arms.

The chain is an ordinary LangChain chain, prompt, model and parser, over passages of real documents;
8 users each ``invoke`` it, or one streams it. Plain is langchain_huggingface's pipeline, which is
``generate`` of transformers, given the prompt by the model's own chat template, with the number of
callers at once and of torch threads at which it is fastest; ours is ``ChatRagAccel``, as the
process is by itself. Arms take turns over the same prompts, each turn others; answers are greedy,
64 tokens at most (32 in the quick form). Rates are in tokens of answers per second, so that an
answer that ends early counts as what it is.

No prompt begins as another does, so nothing is read from the prefix cache. Greedy texts in bfloat16
depend on what else is in a forward, in plain's own batches too: how many are equal is a row, and
not demanded. An option that ``LocalLLM`` does not have, or that cannot run here, is named as
row ``missing``, and its ratio is left out.

Sampled answers (temperature 0.7, top_p 0.9) are those of the frameworks' own models, as programs
have them: plain, and unchanged but for ``accelerate`` with ``adopt_llm="batched"``; the quick form
has LangChain's alone. A first text is the first piece of a short stream, where all 8 users begin at
once.

Rows without a ratio, in the full sizes only: 8 users with prompts of 1500 tokens, and milliseconds
a token, prompt included, beside a thread that is busy in Python.

Ratios:
    throughput_8: against langchain_huggingface's pipeline at its best callers and torch threads:
        tokens/s accelerated / plain with 8 users; median over turns.
    throughput_8_vs_batch: against langchain_huggingface's pipeline in batches of 8, by one call of
        batch: tokens/s accelerated, 8 users / its; median over turns.
    tokens_1: against langchain_huggingface's pipeline at its best torch threads: tokens/s after the
        first text of one user's stream, accelerated / plain; median over streams.
    int8_tokens_1: against langchain_huggingface's pipeline in bfloat16 at its best torch threads:
        tokens/s after the first text of one user's stream, accelerated with weights of int8 /
        plain; median over streams.
    ttft_1: against langchain_huggingface's pipeline at its best torch threads: time to the first
        text of one user's stream, accelerated / plain (lower is better), prompts of 200 to 300
        tokens; median over streams.
    ttft_1_800: against langchain_huggingface's pipeline at its best torch threads: time to the
        first text of one user's stream, accelerated / plain (lower is better), prompts of 800
        tokens; median over streams.
    ttft_1_5k: against langchain_huggingface's pipeline at its best torch threads: time to the first
        text of one user's stream, accelerated / plain (lower is better), prompts of 4,900 tokens;
        median over streams.
    beside_python: against our own runner on torch: tokens/s of one user beside a thread that is
        busy in Python, on the runner over paged attention / on torch; median over turns.
    sampled_8_langchain: against HuggingFacePipeline at its best callers and torch threads: tokens/s
        of sampled answers, accelerated / plain with 8 users; median over turns; wanted 2.5.
    sampled_8_llama_index: against HuggingFaceLLM at its best callers and torch threads: the same.
    sampled_first_langchain: against HuggingFacePipeline with 8 callers at its best torch threads:
        median time to the first text of 8 sampled streams, accelerated / plain (lower is better);
        median over turns; wanted 1.0.
    sampled_first_llama_index: against HuggingFaceLLM with 8 callers at its best torch threads: the
        same.
    one_user: against langchain_huggingface's pipeline at its best torch threads: time of one user's
        stream accelerated / plain (lower is better; accepted: at most 1.03); median over
        streams, prompts of 200 to 300 tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arms import bench_accelerator
from bench.garbage import little_garbage
from bench.local_llm import answers, beside
from bench.local_llm.answers import BATCH, OURS, PLAIN, Setting
from bench.local_llm.chains import PlainModel, our_chain
from bench.local_llm.choices import PAGED, TORCH, missing_row, runner_option, weights_option
from bench.local_llm.prompts import Prompts, spread
from bench.local_llm.sampled import FRAMEWORKS, Sampled
from bench.local_llm.streams import StreamArm, compare_streams, our_stream, plain_stream
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of
from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError, RagAccelError
from rag_accel.sample import read_corpus, smollm2_folder

_CHUNKS = 600
INT8 = "accelerated, int8"

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
        alone_turns: of one user, of ``alone_prompts`` streams each.
        tuning_tokens: of answers that look for plain's best setting.
        stream_tokens: most tokens of a stream of which the first text alone counts.
        long_prompts: tokens of the prompts of ``ttft_1_800`` and ``ttft_1_5k``.
        long_streams: streams of each.
        busy_turns: of one user beside a busy thread.
        busy_tokens: most tokens of an answer there.
        many_prompt: tokens of long prompts that several users have.
        many_users: of them, at once.
        beside_tokens: of answers without a ratio; 0 for none of them.
        sampled_turns: of each measurement of sampled answers.
        sampled: whose models.
    """

    users: int = 8
    prompt: tuple[int, int] = (200, 300)
    tokens: int = 64
    turns: int = 7
    alone_prompts: int = 3
    alone_turns: int = 7
    tuning_tokens: int = 24
    stream_tokens: int = 4
    long_prompts: tuple[int, int] = (800, 4900)
    long_streams: tuple[int, int] = (9, 7)
    busy_turns: int = 7
    busy_tokens: int = 24
    many_prompt: int = 1500
    many_users: int = 8
    beside_tokens: int = 16
    sampled_turns: int = 7
    sampled: tuple[str, ...] = tuple(FRAMEWORKS)


QUICK = Sizes(
    tokens=32,
    turns=3,
    alone_turns=1,
    tuning_tokens=4,
    long_streams=(3, 1),
    busy_turns=1,
    busy_tokens=4,
    beside_tokens=0,
    sampled_turns=2,
    sampled=("langchain",),
)
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
        for part in (bench.several, bench.one, bench.long, bench.busy, bench.without_ratio):
            part(accelerator)
            _logger.info("%s", bench.found)
    bench.sampled()
    _logger.info("%s", bench.found)
    scripted = "the search of early_prefill sleeps" if chosen.early_turns else False
    return SuiteResult(
        *("serving", tuple(bench.rows), bench.found), scripted=scripted, sizes=sizes_of(chosen)
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
        self.rows += [*answers.setting_rows(workload, setting), *compared.rows()]
        self.found["throughput_8"] = compared.gain(PLAIN)
        self.found["throughput_8_vs_batch"] = compared.gain(BATCH)

    def one(self, fast: Accelerator) -> None:
        """Compare one user's streams: the first text, and the rate after it."""
        sizes = self._sizes
        setting = self._best([1], sizes.alone_prompts)
        arms: dict[str, StreamArm] = {
            PLAIN: plain_stream(self._plain.chain(sizes.tokens), setting.threads),
            OURS: our_stream(our_chain(self._folder, fast, sizes.tokens)),
        }
        int8 = weights_option("int8")
        if isinstance(int8, str):
            self.rows.append(missing_row(INT8, int8))
        else:
            arms[INT8] = our_stream(our_chain(self._folder, fast, sizes.tokens, **int8))
            try:
                arms[INT8](self._prompts.asked(self._alone[:1])[0])
            except ConfigError as error:  # such as no bfloat16 in paged attention here
                self.rows.append(missing_row(INT8, str(error)))
                del arms[INT8]
        found = compare_streams("1 user", arms, self._prompts, self._alone, sizes.alone_turns)
        more, lone = one_user({"1 user, a stream": found.whole_ms()})
        self.rows += [*answers.setting_rows("1 user", setting), *found.rows(), *more]
        self.found |= {"ttft_1": found.first_text(), **lone}
        for name, arm in (("tokens_1", OURS), ("int8_tokens_1", INT8)):
            if arm not in arms:
                continue
            if (rate := found.rate(arm)) is None:
                self.rows.append(missing_row(f"{name} of {arm}", "no text after the first"))
            else:
                self.found[name] = rate

    def long(self, fast: Accelerator) -> None:
        """Compare the time to the first text of long prompts."""
        sizes = self._sizes
        tokens = sizes.stream_tokens
        plain, ours = self._plain.chain(tokens), our_chain(self._folder, fast, tokens)
        names = ("ttft_1_800", "ttft_1_5k")
        for name, length, turns in zip(names, sizes.long_prompts, sizes.long_streams, strict=True):
            arms = {PLAIN: plain_stream(plain, answers.most_threads()), OURS: our_stream(ours)}
            workload = f"1 user, prompts of {length} tokens"
            found = compare_streams(workload, arms, self._prompts, [length], turns)
            self.rows += found.rows()
            self.found[name] = found.first_text()

    def busy(self, fast: Accelerator) -> None:
        """Compare our two runners while another thread is busy in Python."""
        sizes = self._sizes
        arms: dict[str, answers.Arm] = {}
        for runner in (PAGED, TORCH):
            option = runner_option(runner)
            if isinstance(option, str):
                self.rows.append(missing_row(_run_by(runner), option))
            else:
                chain = our_chain(self._folder, fast, sizes.busy_tokens, **option)
                arms[_run_by(runner)] = answers.ours(chain, 1)
        if len(arms) < 2:
            return
        try:
            rows, ratio = beside.compare_beside(
                *(_run_by(PAGED), _run_by(TORCH), arms),
                *(self._prompts, self._alone[:1], sizes.busy_turns),
            )
        except (RagAccelError, ImportError) as error:
            self.rows.append(missing_row(_run_by(PAGED), str(error)))
            return
        self.rows += rows
        self.found["beside_python"] = ratio

    def sampled(self) -> None:
        """Compare sampled answers of both frameworks' own models, which are adopted."""
        sizes = self._sizes
        with little_garbage(), bench_accelerator(adopt_llm="batched") as batched:
            users = Sampled(
                *(self._plain, self._prompts, self._lengths),
                *(sizes.sampled_turns, sizes.tuning_tokens, batched),
            )
            for name in sizes.sampled:
                try:
                    rows, rate = users.rates(name, sizes.tokens)
                    more, first = users.first_texts(name, sizes.stream_tokens)
                except ImportError as error:
                    self.rows.append(missing_row(f"{OURS}, sampled, {name}", str(error)))
                    continue
                self.rows += [*rows, *more]
                self.found |= {f"sampled_8_{name}": rate, f"sampled_first_{name}": first}

    def without_ratio(self, fast: Accelerator) -> None:
        """Measure what no claim rests on, if it is wanted."""
        sizes, model = self._sizes, self._plain
        tokens = sizes.beside_tokens
        if not tokens:
            return
        plain, ours = model.chain(tokens), our_chain(self._folder, fast, tokens)
        one = {PLAIN: answers.called(plain, Setting(1, 1)), OURS: answers.ours(ours, 1)}
        self.rows += beside.beside_busy_thread(one, self._prompts, self._alone[:1])
        users = sizes.many_users
        long_prompts = {
            PLAIN: answers.called(plain, Setting(1, answers.most_threads())),
            OURS: answers.ours(ours, users),
        }
        lengths = [sizes.many_prompt] * users
        workload = f"{users} users, prompts of {sizes.many_prompt} tokens"
        self.rows += answers.compare(workload, long_prompts, self._prompts, lengths, 1).rows()

    def _best(self, callers: Sequence[int], prompts: int) -> Setting:
        asked = self._prompts.asked(self._lengths[:prompts])
        chain = self._plain.chain(self._sizes.tuning_tokens)
        return answers.best_setting(chain, asked, callers)


def _run_by(runner: str) -> str:
    return f"{OURS}, {runner}"
