"""Relation paths are found in ids of a program's own, where they are made alike again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from chunk_prompts import A, B
from fake_runner import prompt_ids, tokenizer
from tree_prompts import FUJI, LANE

from rag_accel.engines.llm.local.reuse.id_trees import tree_of_ids
from rag_accel.kv.dependency.lines import parse_path
from rag_accel.kv.dependency.tree import path_tree

PATHS = (*FUJI, *LANE)
TEXT = "Facts:\n{}\n\nHow high is it?".format("\n".join(PATHS))


def encode(text: str) -> tuple[int, ...]:
    return tuple(tokenizer()(text, add_special_tokens=False)["input_ids"])


def documents(*texts: str) -> list[tuple[str, str]]:
    return [(f"text {at}", text) for at, text in enumerate(texts)]


def found(ids: Any, *texts: str, asked: Any = (), made: Any = None) -> Any:
    return tree_of_ids(ids, made or tokenizer(), documents(*texts), asked)


def test_a_prompt_has_the_tree_of_its_paths() -> None:
    ids = tuple(prompt_ids(TEXT))
    tree = found(ids, *PATHS)
    whole = tokenizer().decode(ids)
    head, _, _ = whole.partition(PATHS[0])
    _, _, behind = whole.partition(f"{PATHS[-1]}\n")
    assert tree.head == encode(head)
    assert tree.task == encode(behind)
    expected = path_tree(_segments(), encode)
    assert tree.tree.ids.tolist() == expected.ids.tolist()
    assert len(tree.ids) < len(ids)


def _segments() -> list[tuple[str, ...]]:
    return [path for line in PATHS if (path := parse_path(line)) is not None]


def test_a_prompt_that_begins_with_a_token_of_its_own_keeps_it() -> None:
    ids = tuple(tokenizer()(TEXT)["input_ids"])
    assert ids[0] == tokenizer().bos_token_id
    assert found(ids, *PATHS).head[0] == ids[0]


@pytest.mark.parametrize("texts_first", [True, False])
def test_texts_next_to_the_paths_are_chunks(texts_first: bool) -> None:
    paths = "\n".join(PATHS)
    parts = [A, paths, B] if texts_first else [paths, A, B]
    ids = tuple(prompt_ids("Facts:\n{}\n\nHow high is it?".format("\n\n".join(parts))))
    prompt = tree_of_ids(ids, tokenizer(), documents(*PATHS, A, B), (), least_tokens=1)
    assert prompt is not None
    assert prompt.paths is not None
    assert [chunk.text for chunk in prompt.chunks] == [A, B]
    assert prompt.tree.ids.tolist() == path_tree(_segments(), encode).ids.tolist()
    # What all are encoded behind is the same whatever was retrieved.
    assert prompt.head == found(ids, A, B, *PATHS).head[: len(prompt.head)]
    assert prompt.chunks[0].start >= len(prompt.head)
    alone = tree_of_ids(ids, tokenizer(), documents(*PATHS, A, B), ())
    assert alone is not None
    assert alone.chunks == ()


@pytest.mark.parametrize("texts", [(), ("Another text that is in no prompt.",), PATHS[:1]])
def test_what_shares_nothing_has_no_tree(texts: tuple[str, ...]) -> None:
    assert found(prompt_ids(TEXT), *texts) is None


def test_lines_that_are_the_question_have_no_tree() -> None:
    assert found(prompt_ids(TEXT), *PATHS, asked=frozenset(PATHS)) is None


def test_ids_that_their_text_would_not_give_have_no_tree() -> None:
    ids = [token for letter in TEXT for token in encode(letter)]
    assert tokenizer().decode(ids) == TEXT
    assert found(ids, *PATHS) is None


def test_ids_that_are_none_of_the_tokenizers_have_no_tree() -> None:
    assert found([*prompt_ids(TEXT), 1 << 20], *PATHS) is None


def test_a_slow_tokenizer_finds_no_tree() -> None:
    assert found(prompt_ids(TEXT), *PATHS, made=object()) is None


@pytest.mark.parametrize("setting", ["padding", "truncation"])
def test_settings_of_other_calls_change_no_tree(setting: str) -> None:
    made = copy.deepcopy(tokenizer())
    if setting == "padding":
        made.backend_tokenizer.enable_padding(length=500)
    else:
        made.backend_tokenizer.enable_truncation(8)
    assert found(prompt_ids(TEXT), *PATHS, made=made) is None


def test_paths_that_have_more_tokens_in_parts_have_no_tree() -> None:
    lines = ("a -> r -> c", "a -> s -> d")
    made = copy.deepcopy(tokenizer())
    text = "\n".join(lines) + "\nWhy?"
    assert found(encode(text), *lines, made=made) is not None
    made.add_tokens(list(lines))
    ids = tuple(made(text, add_special_tokens=False)["input_ids"])
    assert len(ids) < len(encode(text))
    assert found(ids, *lines, made=made) is None
