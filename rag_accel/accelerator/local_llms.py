"""The local language models of one accelerator, with their options; equals share an engine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rag_accel.config import Options
from rag_accel.engines.llm.named import refuse_in_process
from rag_accel.requests.engines import is_model_name

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from rag_accel.engines.llm.local.options import LocalOptions
    from rag_accel.engines.llm.named import NamedLLM, RunnableLLM
    from rag_accel.engines.llm.remote.remote_llm import RemoteModel


def as_local_llm(name: str, given: Any) -> NamedLLM | None:
    """Return what was given as a language model that runs here; None for anything else.

    Args:
        name: what stages call it; a language model may be given by its folder or name alone.
        given: what the user gave.

    Raises:
        ConfigError: an engine of vLLM's in this process.
    """
    refuse_in_process(given, f"Accelerator, {name or 'a member of a pool'}")
    if name == "llm" and is_model_name(given):
        from rag_accel.engines.llm.local.local_llm import LocalLLM

        return LocalLLM(given)
    return given if is_named_llm(given) else None


def is_named_llm(given: Any) -> TypeIs[NamedLLM]:
    """Tell whether this is a language model as users name it; nothing is imported for it."""
    return any(
        (module := sys.modules.get(f"rag_accel.engines.llm.{home}")) is not None
        and isinstance(given, getattr(module, cls))
        for home, cls in _CLASSES.items()
    )


_CLASSES = {
    "local.local_llm": "LocalLLM",
    "remote.remote_llm": "RemoteLLM",
    "vllm.vllm_llm": "VllmLLM",
}


class LocalLLMs:
    """Local language models by how users name them. Thread-safe.

    Args:
        options: ``kv_reuse`` and ``kv_folder`` of models that name none.
    """

    def __init__(self, options: Options) -> None:
        self._own = {"kv_reuse": options.kv_reuse, "kv_folder": options.kv_folder}
        #: those that were given to the accelerator, whose bounds hold for others of the same model
        self._given: list[NamedLLM] = []
        self._models: WeakKeyDictionary[NamedLLM, RunnableLLM] = WeakKeyDictionary()
        #: bounds of models that none was given of; made when they are first asked for
        self._usual: LocalOptions | None = None

    def add(self, llm: NamedLLM) -> RunnableLLM:
        """Take a model that was given to the accelerator; the first one of a model counts."""
        model = self.model(llm)
        self._given.append(llm)
        self._models = WeakKeyDictionary({llm: model})
        return model

    @property
    def are_given(self) -> bool:
        """Tell whether a model was given to the accelerator."""
        return bool(self._given)

    def served_by(self, base_url: str, name: str) -> RemoteModel | None:
        """Return the given model of several servers that one of these is; None for none.

        Args:
            base_url: of the server that a program asks.
            name: of the model that it asks for.
        """
        for llm in self._given:
            model: Any = self.model(llm)
            servers = getattr(model, "servers", ())
            if len(servers) > 1 and any(
                server.base_url == base_url and server.model == name for server in servers
            ):
                return model
        return None

    @property
    def has_servers(self) -> bool:
        """Tell whether a model of several servers was given."""
        return any(len(getattr(self.model(llm), "servers", ())) > 1 for llm in self._given)

    def model(self, llm: NamedLLM) -> RunnableLLM:
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
        from rag_accel.engines.llm.local.local_llm import LocalLLM
        from rag_accel.engines.llm.local.options import LocalOptions

        local = (llm for llm in self._given if isinstance(llm, LocalLLM))
        given = next((llm for llm in local if llm.model is model), None)
        if given is not None:
            return LocalOptions.of(**{**self._own, **given.named})
        if self._usual is None:
            self._usual = LocalOptions.of(**self._own)
        return self._usual

    def _defaults(self, llm: NamedLLM) -> dict[str, Any]:
        given = next((other for other in self._given if other.is_same_model(llm)), None)
        return self._own if given is None else {**self._own, **given.named}
