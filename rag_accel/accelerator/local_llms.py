"""The local language models of one accelerator, with their options; equals share an engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rag_accel.config import Options
from rag_accel.requests.engines import is_model_name

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.choice import LocalModel
    from rag_accel.engines.llm.local.local_llm import LocalLLM
    from rag_accel.engines.llm.local.options import LocalOptions


def as_local_llm(name: str, given: Any) -> LocalLLM | None:
    """Return what was given as a local language model; None for anything else.

    Args:
        name: what stages call it; a language model may be given by its folder or name alone.
        given: what the user gave.
    """
    is_named = name == "llm" and is_model_name(given)
    if not is_named and "rag_accel.engines.llm.local.local_llm" not in sys.modules:
        return None
    from rag_accel.engines.llm.local.local_llm import LocalLLM

    if is_named:
        return LocalLLM(given)
    return given if isinstance(given, LocalLLM) else None


class LocalLLMs:
    """Local language models by how users name them. Thread-safe.

    Args:
        options: ``kv_reuse`` and ``kv_folder`` of models that name none.
    """

    def __init__(self, options: Options) -> None:
        self._own = {"kv_reuse": options.kv_reuse, "kv_folder": options.kv_folder}
        #: those that were given to the accelerator, whose bounds hold for others of the same model
        self._given: list[LocalLLM] = []
        self._models: WeakKeyDictionary[LocalLLM, LocalModel] = WeakKeyDictionary()
        #: bounds of models that none was given of; made when they are first asked for
        self._usual: LocalOptions | None = None

    def add(self, llm: LocalLLM) -> LocalModel:
        """Take a model that was given to the accelerator; the first one of a model counts."""
        model = self.model(llm)
        self._given.append(llm)
        self._models = WeakKeyDictionary({llm: model})
        return model

    @property
    def are_given(self) -> bool:
        """Tell whether a model was given to the accelerator."""
        return bool(self._given)

    def model(self, llm: LocalLLM) -> LocalModel:
        """Return what is run for a component's model, the same for all that come to the same.

        Raises:
            ConfigError: a bound is out of range.
        """
        models = self._models
        found = models.get(llm)
        if found is None:
            found = models[llm] = llm.resolved(self._defaults(llm))
        return found

    def bounds(self, model: Any) -> LocalOptions:
        """Return what a model object that a program has already is run within.

        They are those of the accelerator's own ``LocalLLM`` of the same object, else its options
        ``kv_reuse`` and ``kv_folder``.

        Raises:
            ConfigError: a bound is out of range.
        """
        from rag_accel.engines.llm.local.options import LocalOptions

        given = next((llm for llm in self._given if llm.model is model), None)
        if given is not None:
            return LocalOptions.of(**{**self._own, **given.named})
        if self._usual is None:
            self._usual = LocalOptions.of(**self._own)
        return self._usual

    def _defaults(self, llm: LocalLLM) -> dict[str, Any]:
        given = next((other for other in self._given if other.is_same_model(llm)), None)
        return self._own if given is None else {**self._own, **given.named}
