"""Tokenise texts as a model's own ``preprocess`` does, at half its cost.

``preprocess`` looks at each text for images and messages and turns each list of ids over in Python:
25 microseconds a text on top of the tokenizer's 20, while it holds the interpreter. For a text
model on a fast tokenizer all that comes to one call of that tokenizer, which is made here on the
same live object. Whether it gives the same is tried on texts before, and it is left to
``preprocess`` wherever a setting is no longer what it was then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rag_accel.engines.embedding.model_watch import Settings
from rag_accel.engines.embedding.runtime import Tables

_LIBRARIES = ("sentence_transformers.", "transformers.")
_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
#: Together, and each alone; the last is longer than what models take.
_PROBES = (
    "a",
    "",
    " The bridge\n is closed. ",
    "[MASK] of [SEP] <s> </s> <unk>",
    "Na\u00efve caf\u00e9 \u4e2d\u6587 \u0130 \ufb01 0x7f 12,345.67 %",
    "https://example.org/river.png",
    "river " * 9000,
)


class FastTokens:
    """Call a model's tokenizer.

    Args:
        model: a ``SentenceTransformer``.
        features: what its ``preprocess`` gives for a text.
    """

    def __init__(self, model: Any, features: Mapping[str, Any]) -> None:
        first = next(model.children())
        self._tokenizer = first.tokenizer
        self._backend = self._tokenizer.backend_tokenizer
        self._first = first
        self._code = [(one, name, _code_of(one, name)) for one, name in self._ways(model)]
        self._settings = Settings(first), Settings(self._tokenizer, with_private=True)
        self._fields = [(name, field) for name, field in _FIELDS.items() if name in features]
        self._state = self._backend_state()

    @property
    def is_of_the_libraries(self) -> bool:
        """Tell whether nobody else's code would be passed over."""
        return all(code.__module__.startswith(_LIBRARIES) for _, _, code in self._code)

    def of(self, texts: Sequence[str], prompt: str | None) -> Tables | None:
        """Return ids, mask and types of texts; None where only ``preprocess`` can tell."""
        if not self._is_as_tried():
            return None
        whole = [prompt + text for text in texts] if prompt else list(texts)
        found = self._backend.encode_batch(whole)
        width = len(found[0].ids) if found else 0
        if any(len(one) != width for one in found):  # somebody else set it differently meanwhile
            return None
        return {
            name: np.array([getattr(one, field) for one in found], dtype=np.int64)
            for name, field in self._fields
        }

    def _is_as_tried(self) -> bool:
        return (
            self._first.tokenizer is self._tokenizer
            and self._tokenizer.backend_tokenizer is self._backend
            and all(_code_of(one, name) is code for one, name, code in self._code)
            and all(settings.are_same() for settings in self._settings)
            and self._backend_state() == self._state
        )

    def _ways(self, model: Any) -> list[tuple[Any, str]]:
        """Return the methods in place of which the tokenizer is called."""
        return [
            *((model, "preprocess"), (self._first, "preprocess")),
            *((self._tokenizer, "__call__"), (self._tokenizer, "_encode_plus")),
        ]

    def _backend_state(self) -> tuple[Any, ...]:
        backend = self._backend
        return backend.truncation, backend.padding, backend.encode_special_tokens


def _code_of(owner: Any, name: str) -> Any:
    """Return the function that a method is, put over one object or of its class."""
    return vars(owner).get(name) or getattr(type(owner), name)


def fast_tokens(model: Any) -> FastTokens | None:
    """Return what tokenises for a ``SentenceTransformer``; None where only it can."""
    try:
        made = FastTokens(model, model.preprocess([_PROBES[0]]))
        if not made.is_of_the_libraries:
            return None
        joined = next(model.children()).input_formatter.prepend_prompt_to_texts(["b"], "a ")
        groups = [list(_PROBES), *([text] for text in _PROBES)]
        is_same = joined == ["a b"] and all(
            _is_equal(made.of(group, None), tables_of(model.preprocess(group))) for group in groups
        )
    except Exception:  # a tokenizer of another make may lack or refuse any of it
        return None
    return made if is_same else None


def tables_of(features: Mapping[str, Any]) -> Tables:
    """Return the tables among the features that a model's ``preprocess`` gives."""
    return {
        name: value.numpy() for name, value in features.items() if getattr(value, "ndim", 0) > 0
    }


def _is_equal(found: Tables | None, wanted: Tables) -> bool:
    return (
        found is not None
        and found.keys() == wanted.keys()
        and all(np.array_equal(found[name], table) for name, table in wanted.items())
    )
