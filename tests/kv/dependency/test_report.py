"""The savings of each layout, counted from its mask."""

from __future__ import annotations

from collections import Counter

import pytest
from tree_kit import characters, random_paths

from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.encoded import encode_prompt
from rag_accel.kv.dependency.layouts import LAYOUTS
from rag_accel.kv.dependency.prompt import DepPrompt
from rag_accel.kv.dependency.report import report_layouts, report_prompts
from rag_accel.kv.dependency.tokens import tree_prompt
from rag_accel.kv.segments import SegmentedPrompt

SYSTEM, TASK = "Answer.", "Who?"


@pytest.mark.parametrize("seed", range(20))
def test_pairs_are_those_of_the_prompts_mask(seed: int) -> None:
    paths = random_paths(seed)
    report = report_layouts(paths, characters, head_tokens=len(SYSTEM), question_tokens=len(TASK))
    for layout in LAYOUTS:
        prompt = encode_prompt(DepPrompt.chain(SYSTEM, paths, TASK, layout=layout), characters)
        cost = report.costs[layout]
        assert cost.tokens == len(prompt) - len(SYSTEM) - len(TASK)
        assert cost.attended_pairs == prompt.mask().sum()
    size = report.costs["flat"].tokens + len(SYSTEM) + len(TASK)
    assert report.costs["flat"].attended_pairs == size * (size + 1) // 2
    assert report.attended_share("flat") == 1.0
    assert report.redundant_share("flat") == 0.0


def test_shares_of_a_worked_example() -> None:
    report = report_layouts([("a", "r", "b"), ("a", "r", "c"), ("b", "s", "d")], characters)
    assert {layout: cost.tokens for layout, cost in report.costs.items()} == {
        "tree": 10,
        "records": 10,
        "flat": 12,
        "grouped": 11,
    }
    assert report.costs["tree"].attended_pairs == (1 + 2 + 3 + 4 + 3 + 4) + (1 + 2 + 3 + 4)
    assert report.attended_share() == pytest.approx(27 / 78)
    assert report.redundant_share() == pytest.approx(2 / 12)


def test_equal_paths_are_redundant() -> None:
    report = report_layouts(iter([("a", "r", "b")] * 4), characters)
    assert report.redundant_share() == 0.75


def test_a_text_is_encoded_once_for_all_layouts() -> None:
    calls: Counter[str] = Counter()

    def encode(text: str) -> list[int]:
        calls[text] += 1
        return characters(text)

    report_layouts([("a", "r", "b", "s", "a"), ("b", "r", "a")], encode)
    assert calls == Counter(["a", "r", "b", "s", "\n"])


def test_paths_without_tokens_save_nothing() -> None:
    report = report_layouts([("a",)], lambda text: [])
    assert report.attended_share() == 1.0
    assert report.redundant_share() == 0.0


def test_records_of_paths_that_share_nothing_have_more_tokens() -> None:
    report = report_layouts([("a", "r", "b", "s", "c")], characters)
    assert report.redundant_share() == 0.0
    assert report.redundant_share("records") == report.redundant_share("grouped") == -2 / 6


@pytest.mark.parametrize("name", ["head_tokens", "question_tokens"])
def test_negative_numbers_of_tokens_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        report_layouts([("a",)], characters, **{name: -1})


def prompts_of(seed: int) -> tuple[DepPrompt, DepPrompt]:
    """Return a prompt with a tree of paths, and the same one as it is written."""
    paths = list(dict.fromkeys(random_paths(seed)))
    layouts = ("tree", "flat")
    tree, flat = (DepPrompt.chain(SYSTEM, paths, TASK, layout=layout) for layout in layouts)
    return tree, flat


def test_whole_prompts_are_summed_by_their_masks() -> None:
    written: list[tuple[int, SegmentedPrompt]] = []
    pairs = {"flat": 0, "tree": 0}
    tokens = {"flat": 0, "tree": 0}
    for seed in range(5):
        tree, flat = prompts_of(seed)
        whole = encode_prompt(flat, characters)
        written.append((len(whole), tree_prompt(tree, characters)))
        for layout, prompt in (("tree", encode_prompt(tree, characters)), ("flat", whole)):
            pairs[layout] += int(prompt.mask().sum())
            tokens[layout] += len(prompt) - len(SYSTEM) - len(TASK)
    report = report_prompts(iter(written))
    assert {layout: cost.attended_pairs for layout, cost in report.costs.items()} == pairs
    assert {layout: cost.tokens for layout, cost in report.costs.items()} == tokens
    assert report.attended_share() == pairs["tree"] / pairs["flat"] < 1


def test_labels_and_repeated_lines_are_costs_of_the_text() -> None:
    prompt = tree_prompt(DepPrompt.chain(SYSTEM, [("a", "r", "b")], TASK), characters)
    report = report_prompts([(len(prompt.ids) + 4, prompt)])
    assert report.redundant_share() == 4 / 8


def test_no_prompts_save_nothing() -> None:
    assert report_prompts([]).attended_share() == 1.0


def test_a_prompt_shorter_than_what_stands_around_its_paths_is_refused() -> None:
    prompt = tree_prompt(DepPrompt.chain(SYSTEM, [("a", "r", "b")], TASK), characters)
    with pytest.raises(ConfigError, match="fewer tokens") as raised:
        report_prompts([(len(SYSTEM + TASK) - 1, prompt)])
    assert f"{len(SYSTEM + TASK)} or more" in str(raised.value)
