"""The check of whether a model is still the one that kept vectors were made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rag_accel.engines.embedding.models import has_plain_encode, is_plain_model


def watch_of(model: Any) -> Callable[[], Callable[[], bool]] | None:
    """Return what makes a check of a model from now on, or None where no change would be seen.

    Seen is what ``ModelWatch`` and ``TokenizerWatch`` see, and settings of the model itself such as
    its prompts.
    """
    if not is_plain_model(model):
        return None

    def watch() -> Callable[[], bool]:
        from rag_accel.engines.embedding.model_watch import (
            ModelWatch,
            Settings,
            TokenizerWatch,
        )

        try:
            seen = ModelWatch(model)
        except RuntimeError:  # weights that count no changes
            return lambda: False
        settings, tokens = Settings(model), TokenizerWatch(model)
        return lambda: (
            has_plain_encode(model) and settings.are_same() and tokens.is_same() and seen.is_same()
        )

    return watch
