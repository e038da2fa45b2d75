"""The settings of models and tokenizers that answers depend on, and a check of changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engines.llm.local.text.sampling import own_sampling
from rag_accel.engines.llm.local.text.stopping import end_tokens
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class UsedSettings:
    """The settings of a model and its tokenizer that the text of an answer depends on.

    Args:
        ends: tokens that end a completion: those of the generation configuration, which
            ``generate`` goes by; where it names none, those of the tokenizer and the configuration.
        sampling: what the generation configuration asks of every completion.
        template: the tokenizer's chat template.
    """

    ends: frozenset[int]
    sampling: Mapping[str, Any]
    template: Any

    @classmethod
    def of(cls, model: Any, tokenizer: Any) -> UsedSettings:
        """Return them as they are now.

        Raises ConfigError where the generation configuration is out of range.
        """
        settings = getattr(model, "generation_config", None)
        ends = end_tokens(settings) or end_tokens(tokenizer, model.config)
        template = copy.copy(getattr(tokenizer, "chat_template", None))
        return cls(ends, own_sampling(settings), template)


class SettingsWatch:
    """A check of whether a model's and a tokenizer's settings are those that are used.

    Args:
        model: a model object; None for one that nobody else has.
        tokenizer: of transformers.
        template: whether the tokenizer's chat template is used.
        used: the settings as they were.
    """

    def __init__(self, model: Any, tokenizer: Any, *, template: bool, used: UsedSettings) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._used = used

    def is_same(self) -> bool:
        """Tell whether nothing has changed; from any thread."""
        if self._template and self._tokenizer.chat_template != self._used.template:
            return False
        if self._model is None:
            return True
        try:
            now = UsedSettings.of(self._model, self._tokenizer)
        except ConfigError:  # out of range: whoever loads the model as it is now is told
            return False
        return (now.ends, now.sampling) == (self._used.ends, self._used.sampling)
