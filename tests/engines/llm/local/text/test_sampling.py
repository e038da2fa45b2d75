"""The choice of tokens from logits, and the options it is governed by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rag_accel.engines.llm.local.text.sampling import Choice, Sampler, choose, read_options
from rag_accel.errors import ConfigError, EngineOutputError

VOCABULARY = 50


def sampler(**options: Any) -> Sampler:
    return Sampler(read_options(options))


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def tokens(logits: torch.Tensor, *samplers: Sampler) -> list[int]:
    return [one.token for one in choose(logits, samplers) if isinstance(one, Choice)]


def drawn(row: torch.Tensor, count: int, **options: Any) -> list[int]:
    one = sampler(seed=1, **options)
    return [tokens(row[None], one)[0] for _ in range(count)]


def test_the_most_probable_token_is_chosen_by_default() -> None:
    logits = random_logits(4)
    assert tokens(logits, *[sampler()] * 4) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1e-45}, {"top_k": 3}])
def test_without_temperature_there_is_no_chance(options: dict[str, Any]) -> None:
    logits = random_logits(1)
    assert set(drawn(logits[0], 20, **options)) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    row = torch.tensor([0.0, 1.0, 2.0, -math.inf])
    found = torch.bincount(torch.tensor(drawn(row, 3000, temperature=temperature)), minlength=4)
    expected = (row / temperature).softmax(-1)
    assert torch.allclose(found / 3000, expected, atol=0.03)
    assert found[3] == 0


def test_top_p_may_keep_more_than_are_sorted_at_first() -> None:
    row = torch.zeros(5000)
    found = drawn(row, 2000, temperature=1.0, top_p=0.9)
    assert len(set(found)) > 1100
    assert max(found) > 1100


BOUNDS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "a large top_p": {"top_p": 0.99},
    "min_p": {"min_p": 0.05},
    "all": {"top_k": 40, "top_p": 0.95, "min_p": 0.02},
}


@pytest.mark.parametrize("digits", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_tokens_have_the_probabilities_that_transformers_gives_them(
    bounds: dict[str, Any], digits: torch.dtype
) -> None:
    library = pytest.importorskip("transformers.generation.logits_process")
    warpers = [
        library.TemperatureLogitsWarper(1.5),
        *[library.TopKLogitsWarper(bounds["top_k"]) for _ in bounds.keys() & {"top_k"}],
        *[library.TopPLogitsWarper(bounds["top_p"]) for _ in bounds.keys() & {"top_p"}],
        *[library.MinPLogitsWarper(bounds["min_p"]) for _ in bounds.keys() & {"min_p"}],
    ]
    logits = 4 * torch.randn(8, 5000, generator=torch.Generator().manual_seed(0))
    is_parted = digits is torch.bfloat16 and "top_p" in bounds  # equal logits, see _largest
    for row in logits.to(digits).float():
        kept, tokens = sampler(temperature=1.5, **bounds).candidates(row)
        found = torch.zeros(len(row))
        found[slice(None) if tokens is None else tokens] = kept.softmax(-1)
        warped = library.LogitsProcessorList(warpers)(torch.tensor([[0]]), row[None])
        wanted = warped[0].softmax(-1)
        if is_parted:
            found, wanted = found.sort().values, wanted.sort().values
        assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.8, 1.3, 5.0])
def test_a_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    prompt, rows = [3, 3, 7, 11], random_logits(6)
    chooser = Sampler(read_options({"repetition_penalty": penalty}), prompt)
    expected = processors.RepetitionPenaltyLogitsProcessor(penalty)
    for row in rows:
        best = int(expected(torch.tensor([prompt]), row[None])[0].argmax())
        assert tokens(row[None], chooser) == [best]
        prompt.append(best)


def test_a_repetition_penalty_leaves_the_logits_and_their_probability() -> None:
    (row,) = random_logits(1)
    best = int(row.argmax())
    before = row.clone()
    options = read_options({"repetition_penalty": 100.0, "logprobs": True})
    (choice,) = choose(row[None], [Sampler(options, [best])])
    assert isinstance(choice, Choice)
    assert choice.token != best
    assert choice.logprob == pytest.approx(float(before.log_softmax(-1)[choice.token]))
    assert torch.equal(row, before)


def test_seeds_differ() -> None:
    logits = random_logits(1)
    one, other = sampler(temperature=2.0, seed=1), sampler(temperature=2.0, seed=2)
    assert [tokens(logits, one) for _ in range(20)] != [tokens(logits, other) for _ in range(20)]


def test_without_a_seed_runs_differ() -> None:
    logits = random_logits(1)
    one, other = sampler(temperature=2.0), sampler(temperature=2.0)
    assert [tokens(logits, one) for _ in range(20)] != [tokens(logits, other) for _ in range(20)]


def test_a_seeded_sequence_draws_the_same_alone_and_beside_others() -> None:
    alone, beside = sampler(temperature=1.5, seed=7), sampler(temperature=1.5, seed=7)
    others = [sampler(temperature=1.0), sampler(), sampler(temperature=1.5, seed=7)]
    for step in range(20):
        logits = random_logits(4, step)
        single = tokens(logits[2:3], alone)
        assert tokens(logits, others[0], others[1], beside, others[2])[2] == single[0]


def test_chance_of_the_process_is_left_alone() -> None:
    before = torch.get_rng_state()
    drawn(random_logits(1)[0], 5, temperature=1.0)
    tokens(random_logits(1), sampler(temperature=1.0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3, "seed": 3, "top_k": 4}])
def test_logprobs_are_those_of_the_model(options: dict[str, Any]) -> None:
    logits = random_logits(1)
    (choice,) = choose(logits, [sampler(logprobs=True, **options)])
    assert isinstance(choice, Choice)
    expected = logits[0].log_softmax(-1)[choice.token]
    assert choice.logprob == pytest.approx(float(expected), abs=1e-6)


def test_logprobs_are_none_unless_asked_for() -> None:
    assert choose(random_logits(1), [sampler()]) == [Choice(int(random_logits(1).argmax()))]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_a_row_that_is_not_finite_is_an_error_and_its_neighbours_go_on(
    bad: float, options: dict[str, Any]
) -> None:
    logits = random_logits(3)
    logits[1, 7] = bad
    first, faulty, last = choose(logits, [sampler(seed=0, **options) for _ in range(3)])
    assert isinstance(faulty, EngineOutputError)
    assert isinstance(first, Choice)
    assert isinstance(last, Choice)


def test_a_row_without_any_possible_token_is_an_error() -> None:
    (faulty,) = choose(torch.full((1, VOCABULARY), -math.inf), [sampler()])
    assert isinstance(faulty, EngineOutputError)


def test_no_rows_are_no_choices() -> None:
    assert choose(torch.zeros(0, VOCABULARY), []) == []


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"beams, mirostat.*top_p"):
        read_options({"mirostat": 2, "temperature": 0.5, "beams": 4})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", math.nan),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 2.5),
        ("seed", 1.0),
        ("seed", 1 << 64),
        ("logprobs", 1),
        ("n", 2),
        ("presence_penalty", 0.5),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        read_options({name: value})


def test_options_that_change_nothing_are_accepted() -> None:
    given = {"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "top_p": None}
    assert read_options(given) == read_options({})
