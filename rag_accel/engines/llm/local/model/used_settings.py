"""The settings of models and tokenizers that answers depend on."""

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

    def are_same(self, model: Any, tokenizer: Any, *, template: bool) -> bool:
        """Tell whether a model and its tokenizer still have them; from any thread.

        Args:
            model: a model object; None for one that nobody else has.
            tokenizer: of transformers.
            template: whether the tokenizer's chat template is used.
        """
        if template and tokenizer.chat_template != self.template:
            return False
        if model is None:
            return True
        try:
            now = UsedSettings.of(model, tokenizer)
        except ConfigError:  # out of range: whoever loads the model as it is now is told
            return False
        return (now.ends, now.sampling) == (self.ends, self.sampling)
