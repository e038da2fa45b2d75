"""The suite on a language model of the process runs all arms and defines its ratios."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("transformers")

import torch

from bench.local_llm import answers, beside, choices, first_token
from bench.local_llm.beside import busy_thread
from bench.local_llm.chains import Streamed, streamed
from bench.local_llm.prompts import Prompts, spread
from bench.local_llm.streams import RATE, Streams, compare_streams
from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import ratio_definitions, serving
from rag_accel.errors import EngineError, UncheckedWeightsWarning
from rag_accel_demo.load import Load

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by the same rope.",
    "The filter of the pump is cleaned every month, or when the water no longer comes.",
)
TINY = serving.Sizes(
    users=2,
    prompt=(40, 60),
    tokens=6,
    turns=1,
    alone_prompts=1,
    alone_turns=1,
    tuning_tokens=1,
    stream_tokens=3,
    long_prompts=(70, 100),
    long_streams=(1, 1),
    busy_turns=1,
    busy_tokens=2,
    history=80,
    search_s=0.02,
    early_turns=1,
    many_prompt=100,
    many_users=1,
    beside_tokens=2,
)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.padding_side = "left"
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return _tokenizer()


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save a tiny model of seeded weights with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    path: Path = tmp_path_factory.mktemp("tiny-model")
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.15,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def prompts(tokenizer: Any) -> Prompts:
    return Prompts(tokenizer, TEXTS)


pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def found(folder: str) -> SuiteResult:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        # One arm computes with int8 weights, which nobody has compared for a model of a test.
        warnings.simplefilter("ignore", UncheckedWeightsWarning)
        return serving.run(True, TINY, serving.Material(folder, TEXTS))


def _lacking() -> dict[str, str]:
    """Return the arms whose options there are not, and the ratios that are left out with them."""
    options = {
        serving.INT8: ("int8_tokens_1", choices.weights_option("int8")),
        "accelerated, paged": ("beside_python", choices.runner_option("paged")),
        "accelerated, torch": ("beside_python", choices.runner_option("torch")),
    }
    return {name: ratio for name, (ratio, option) in options.items() if isinstance(option, str)}


def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    lacking = _lacking()
    assert set(found.ratios) == set(ratio_definitions(found.suite)) - set(lacking.values())
    assert {row.system for row in found.rows if row.metric == "missing"} == set(lacking)
    assert {row.system for row in found.rows} == {
        answers.PLAIN,
        answers.BATCH,
        answers.OURS,
        serving.INT8,
        "accelerated, paged",
        "accelerated, torch",
        first_token.LATE,
        first_token.ALONE,
    }


def test_the_names_of_the_ratios_stay() -> None:
    assert list(ratio_definitions("serving")) == [
        *("throughput_8", "throughput_8_vs_batch", "tokens_1", "int8_tokens_1"),
        *("ttft_1", "ttft_1_800", "ttft_1_5k", "beside_python", "early_prefill"),
    ]


def test_an_option_that_there_is_not_is_named() -> None:
    lacks = choices._option("no_such_option", "any")
    assert lacks == "LocalLLM has no option no_such_option"
    assert choices._option("kv_reuse", "full") == {"kv_reuse": "full"}
    row = choices.missing_row("accelerated, any", str(lacks))
    assert (row.workload, row.metric, row.median) == (lacks, "missing", 1)


def _equal(found: SuiteResult, system: str, metric: str) -> list[Row]:
    return [row for row in found.rows if (row.system, row.metric) == (system, metric)]


def test_in_float32_our_answers_are_plains(found: SuiteResult) -> None:
    rows = _equal(found, answers.OURS, "answers_equal_to_plain")
    assert {row.workload for row in rows} == {"2 users", "1 users, prompts of 100 tokens"}
    assert all(row.median == row.n for row in rows)


def test_an_early_beginning_changes_no_answer(found: SuiteResult) -> None:
    (row,) = _equal(found, first_token.EARLY, f"answers_equal_to_{first_token.LATE}")
    assert row.median == row.n == 1


def test_a_plan_without_an_early_beginning_is_refused(
    folder: str, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_token, "searching", first_token.alone)
    with pytest.raises(EngineError, match="no beginning"):
        first_token.early_prefill(folder, prompts, 20, 0.0, 1, 1)


def test_no_prompt_begins_as_another_and_their_sizes_are_those_wanted(
    tokenizer: Any, prompts: Prompts
) -> None:
    asked = prompts.asked([300, 400])
    assert len({one["number"] for one in (*asked, *prompts.asked([300]))}) == 3
    counts = [prompts.count(one["context"]) for one in asked]
    assert counts[1] - counts[0] == pytest.approx(100, abs=5)


def test_sizes_are_spread_from_the_least_to_the_most() -> None:
    assert spread(3, 200, 300) == [200, 250, 300]
    assert spread(1, 200, 300) == [200]


def test_a_rate_counts_tokens_and_not_answers(prompts: Prompts) -> None:
    whole, half = ("one two three four",), ("one two",)
    loads = {answers.PLAIN: [Load(half, (1.0,), 1.0)], answers.OURS: [Load(whole, (1.0,), 1.0)]}
    compared = answers.Compared("1 user", loads, prompts)
    assert compared.gain(answers.PLAIN) == prompts.count(whole[0]) / prompts.count(half[0])
    (equal,) = [row for row in compared.rows() if row.metric == "answers_equal_to_plain"]
    assert (equal.median, equal.n) == (0, 1)


def test_the_first_text_of_a_stream_is_not_an_empty_piece() -> None:
    read: list[str] = []

    def pieces() -> Any:
        for piece in ("", "a", "b"):
            read.append(piece)
            yield piece

    assert streamed(pieces()).answer == "ab"
    assert read == ["", "a", "b"]


def test_the_busy_thread_ends_with_its_block() -> None:
    import threading

    before = threading.active_count()
    with busy_thread():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_saved_time_is_a_share_of_the_shorter_of_prompt_and_search() -> None:
    times = {first_token.EARLY: [600.0], first_token.LATE: [1000.0], first_token.ALONE: [500.0]}
    assert first_token.Early(times, 800.0, 1).share == 0.8
    assert first_token.Early({**times, first_token.ALONE: [900.0]}, 800.0, 1).share == 0.5


def test_a_rate_begins_after_the_first_piece(prompts: Prompts) -> None:
    piece, rest = "one ", "two three four"
    tokens = prompts.count(piece + rest) - prompts.count(piece)
    ours = Streamed(1.0, piece + rest, piece, 3.0)
    plain = Streamed(2.0, piece + rest, piece, 6.0)
    found = Streams("1 user", {answers.PLAIN: [plain], answers.OURS: [ours]}, prompts)
    assert found.first_text() == 0.5
    assert found.rate(answers.OURS) == 2.0
    assert [row.median for row in found.rows() if row.metric == RATE] == [tokens / 4, tokens / 2]


def test_streams_of_one_piece_have_no_rate(prompts: Prompts) -> None:
    whole = Streamed(1.0, "one two", "one two", 1.0)
    found = Streams("1 user", {answers.PLAIN: [whole], answers.OURS: [whole]}, prompts)
    assert found.rate(answers.OURS) is None
    assert not [row for row in found.rows() if row.metric == RATE]


def test_all_arms_stream_the_same_prompts_and_the_first_does_not_count(prompts: Prompts) -> None:
    asked: dict[str, list[Any]] = {answers.PLAIN: [], answers.OURS: []}

    def arm(name: str) -> Any:
        def stream(one: Any) -> Streamed:
            asked[name].append(one)
            return Streamed(1.0, "one two", "one", 2.0)

        return stream

    found = compare_streams("1 user", {name: arm(name) for name in asked}, prompts, [40, 50], 2)
    assert asked[answers.PLAIN] == asked[answers.OURS]
    assert len({one["number"] for one in asked[answers.OURS]}) == 5
    assert {name: len(each) for name, each in found.found.items()} == dict.fromkeys(asked, 4)


def test_runners_are_compared_beside_a_thread_that_is_busy(prompts: Prompts) -> None:
    import threading

    counts: list[int] = []

    def arm(wall_s: float) -> answers.Arm:
        def answer(asked: Any) -> Load:
            counts.append(threading.active_count())
            return Load(("one two",) * len(asked), (wall_s,), wall_s)

        return answer

    arms = {"quick": arm(1.0), "slow": arm(4.0)}
    rows, ratio = beside.compare_beside("quick", "slow", arms, prompts, [40], 2)
    assert ratio == 4.0
    assert [row.n for row in rows] == [2, 2]
    before, *busy = sorted(counts)[:1], *sorted(counts)[2:]
    assert set(busy) == {before[0] + 1}
