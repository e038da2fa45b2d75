"""A local language model as users name it, with the bounds that it is run within."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from rag_accel.engines.llm.local.choice import LocalModel, local_model, name_of
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.engines.llm.local.text.tools import takes_tools
from rag_accel.engines.llm.named import refuse_in_process
from rag_accel.errors import ConfigError

_NAMES = tuple(field.name for field in fields(LocalOptions))


class LocalLLM:
    """A language model of Hugging Face's that runs here, for ``Accelerator(llm=...)``.

    Components of the frameworks hold one, too. Those that name the same model and bounds share an
    engine on an accelerator, with its stages. What is not named here is as the accelerator has it:
    as its own ``LocalLLM`` of the same model says, else its options ``kv_reuse`` and ``kv_folder``.

    Args:
        model: a folder, a name on the hub, or a causal language model of transformers, which stays
            as it is. Only safetensors are read, and no code that comes with a model is run.
        tokenizer: the tokenizer of a model object.
        dtype: ``float32`` or ``bfloat16``; by default that of the checkpoint.
        chat_template: a template (Jinja) in place of the tokenizer's.
        bounds: ``kv_reuse``, ``kv_folder``, ``pool_bytes`` and the others of ``LocalOptions``, by
            name, which describes each; None for those that are not named.

    Raises:
        ConfigError: an unknown bound, or a value out of range.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        dtype: str | None = None,
        chat_template: str | None = None,
        **bounds: Any,
    ) -> None:
        refuse_in_process(model, "LocalLLM, model")
        unknown = sorted(bounds.keys() - set(_NAMES))
        if unknown:
            raise ConfigError(
                "a local language model has no such bound",
                where="LocalLLM",
                found=", ".join(unknown),
                valid=", ".join(_NAMES),
            )
        self.model = model
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.chat_template = chat_template
        #: the bounds that are named
        self.named: Mapping[str, Any] = {
            name: value for name, value in bounds.items() if value is not None
        }
        LocalOptions(**self.named)

    @classmethod
    def of(cls, given: Any, tokenizer: Any = None, **named: Any) -> LocalLLM:
        """Return a component's model: its own arguments over those of a given ``LocalLLM``.

        Raises:
            ConfigError: as the class.
        """
        if not isinstance(given, LocalLLM):
            return cls(given, tokenizer, **named)
        named = {name: value for name, value in named.items() if value is not None}
        if tokenizer is None and not named:
            return given
        chosen = {"dtype": given.dtype, "chat_template": given.chat_template, **given.named}
        chosen.update(named)
        return cls(given.model, given.tokenizer if tokenizer is None else tokenizer, **chosen)

    def __repr__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self.named.items())
        return f"LocalLLM({self.name!r}{named})"

    def __reduce__(self) -> Any:
        return _again, (self.model, self.tokenizer, self.dtype, self.chat_template, self.named)

    @property
    def name(self) -> str:
        return name_of(self.model)

    @cached_property
    def context(self) -> int:
        """Return the most tokens of a prompt and its completion; the weights are not loaded."""
        config = getattr(self.model, "config", None)
        if config is None:
            auto = importlib.import_module("transformers").AutoConfig
            config = auto.from_pretrained(str(self.model), trust_remote_code=False)
        return int(config.max_position_embeddings)

    @cached_property
    def takes_tools(self) -> bool:
        """Tell whether the chat template renders tools; the weights are not loaded."""
        tokenizer = self.tokenizer
        if tokenizer is None and isinstance(self.model, str | Path):
            auto = importlib.import_module("transformers").AutoTokenizer
            tokenizer = auto.from_pretrained(str(self.model), trust_remote_code=False)
        return tokenizer is not None and takes_tools(tokenizer, self.chat_template)

    def is_same_model(self, other: Any) -> bool:
        return isinstance(other, LocalLLM) and self._source == other._source

    def resolved(self, defaults: Mapping[str, Any]) -> LocalModel:
        """Return the model that is run.

        Args:
            defaults: bounds by name where none is named here.

        Raises:
            ConfigError: a value out of range.
        """
        return local_model(
            self.model,
            self.tokenizer,
            dtype=self.dtype,
            template=self.chat_template,
            bounds=LocalOptions.of(**{**defaults, **self.named}),
        )

    @property
    def _source(self) -> tuple[Any, ...]:
        named = isinstance(self.model, str | Path)
        source = str(Path(self.model)) if named else id(self.model)
        return (source, id(self.tokenizer), self.dtype, self.chat_template)


def named_bounds(component: Any) -> dict[str, Any]:
    """Return the bounds that a component has as attributes of the same names."""
    return {name: getattr(component, name) for name in _NAMES if hasattr(component, name)}


def _again(
    model: Any,
    tokenizer: Any,
    dtype: str | None,
    chat_template: str | None,
    named: Mapping[str, Any],
) -> LocalLLM:
    return LocalLLM(model, tokenizer, dtype=dtype, chat_template=chat_template, **named)
