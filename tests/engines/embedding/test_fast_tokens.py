"""The tokenizer called directly gives what ``preprocess`` gives, or leaves it to that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from rag_accel.engines.embedding.fast_tokens import FastTokens, fast_tokens

TEXTS = ["Who may cross the river?", "A", "word " * 300]


def made_for(model: Any) -> FastTokens:
    made = fast_tokens(model)
    assert made is not None
    return made


def assert_same(made: FastTokens, model: Any, texts: list[str], prompt: str | None = None) -> None:
    found = made.of(texts, prompt)
    assert found is not None
    wanted = model.preprocess(texts, prompt=prompt)
    for name, table in found.items():
        assert table.dtype == np.int64
        assert np.array_equal(table, wanted[name].numpy()), name


# Surrogates alone are no text; the tokenizer refuses them in both ways.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@given(st.lists(TEXT, min_size=1, max_size=5), st.none() | TEXT)
@settings(max_examples=60, deadline=None)
def test_any_texts_have_the_tokens_that_preprocess_gives(
    loaded: Any, texts: list[str], prompt: str | None
) -> None:
    assert_same(made_for(loaded), loaded, texts, prompt)


def other_pad(model: Any) -> None:
    model.tokenizer.pad_token = "[UNK]"


def patched(texts: Any, prompt: Any = None, **kwargs: Any) -> Any:
    raise RuntimeError("the user's own code")


CHANGES: dict[str, Callable[[Any], object]] = {
    "longest text": lambda m: setattr(m, "max_seq_length", 6),
    "truncation side": lambda m: setattr(m.tokenizer, "truncation_side", "left"),
    "padding side": lambda m: setattr(m.tokenizer, "padding_side", "left"),
    "padding": other_pad,
    "arguments": lambda m: m[0].processing_kwargs.update(text={"max_length": 5}),
    "tokenizer": lambda m: setattr(m[0], "processor", copy.deepcopy(m.tokenizer)),
    "preprocess": lambda m: setattr(m, "preprocess", patched),
    "preprocess of the first module": lambda m: setattr(m[0], "preprocess", patched),
    "tokenizer's own method": lambda m: setattr(m.tokenizer, "_encode_plus", patched),
    "another truncation between": lambda m: m.tokenizer(["a b c"], truncation=True, max_length=4),
    "no padding between": lambda m: m.tokenizer(["a b c"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_is_set_otherwise_is_left_to_preprocess(
    model: Any, change: Callable[[Any], object]
) -> None:
    made = made_for(model)
    assert_same(made, model, TEXTS)
    change(model)
    assert made.of(TEXTS, None) is None


def test_a_setting_that_is_put_back_is_seen(model: Any) -> None:
    made = made_for(model)
    model.tokenizer(["a b c"])
    assert made.of(TEXTS, None) is None
    model.preprocess(["a"])
    assert_same(made, model, TEXTS)


def test_new_words_of_the_tokenizer_count_at_once(model: Any) -> None:
    made = made_for(model)
    before = made.of(["crossingword"], None)
    model.tokenizer.add_tokens(["crossingword"])
    after = made.of(["crossingword"], None)
    assert before is not None
    assert after is None or after["input_ids"].shape[1] < before["input_ids"].shape[1]


@pytest.mark.parametrize("change", ["preprocess", "preprocess of the first module"])
def test_a_model_whose_code_is_not_the_libraries_is_left_alone(model: Any, change: str) -> None:
    def own(texts: Any, prompt: Any = None, **kwargs: Any) -> Any:
        return plain(texts, prompt=prompt, **kwargs)

    owner = model if change == "preprocess" else model[0]
    plain = owner.preprocess
    owner.preprocess = own
    assert fast_tokens(model) is None
