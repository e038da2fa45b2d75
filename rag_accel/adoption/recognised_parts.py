"""Parts of programs that engines here may run: how they run, and the options that they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.adoption import embedding_devices, local_llms, served_llms
from rag_accel.config import Options
from rag_accel.interception.explanation import BORROWED, component
from rag_accel.interception.leaf_table import is_scheduled, plain_class, plain_method
from rag_accel.interception.option_reach import (
    ADOPTED_EMBEDDINGS,
    ADOPTED_LLM,
    SERVED_LLM,
    component_options,
)
from rag_accel.recognition.embeddings import KnownEmbeddings
from rag_accel.recognition.proxies import ProxyClasses

_NONE = ProxyClasses({})


@dataclass(frozen=True, slots=True)
class RecognisedParts:
    """The recognised leaves of a framework's programs.

    Args:
        base: the base class of embeddings objects.
        embeddings: the embeddings classes that are known.
        proxies: the classes whose objects have proxies.
    """

    base: type
    embeddings: KnownEmbeddings
    proxies: ProxyClasses = _NONE

    def options(self, leaf: Any, options: Options) -> frozenset[str]:
        cls = plain_class(type(leaf))
        if is_scheduled(cls):
            return component_options(leaf, options)
        reads = frozenset[str]()
        adopted = self.embeddings.adopt(leaf, cls, plain_method)
        if adopted is not None and adopted.hosted is None:
            reads |= ADOPTED_EMBEDDINGS
        if self.proxies.language_model(leaf, cls, plain_method) is not None:
            reads |= ADOPTED_LLM
        if self.proxies.is_served(leaf, cls, plain_method):
            reads |= SERVED_LLM
        return reads

    def describe(
        self,
        leaf: Any,
        accelerator: Accelerator,
        others: Callable[[Any], str | None] = lambda leaf: None,
    ) -> str | None:
        """Return how an engine runs a leaf; None if none does.

        Args:
            leaf: the leaf.
            accelerator: whose engines are asked.
            others: returns how a leaf runs that is neither embeddings nor has a proxy.
        """
        cls = plain_class(type(leaf))
        if is_scheduled(cls):
            return component(leaf, accelerator)
        adopted = self.embeddings.adopt(leaf, cls, plain_method)
        if adopted is not None:
            return embedding_devices.describe(adopted, accelerator)
        if (how := others(leaf)) is not None:
            return how
        model = self.proxies.language_model(leaf, cls, plain_method)
        if model is not None:
            return local_llms.describe(accelerator, model)
        if self.proxies.is_served(leaf, cls, plain_method):
            return served_llms.describe(accelerator)
        return self.proxies.describe(leaf, cls, plain_method)

    def borrowed(self, leaf: Any, accelerator: Accelerator, reason: str = "") -> str:
        """Return how a leaf runs that no engine runs."""
        is_embeddings = isinstance(leaf, self.base)
        unused = embedding_devices.describe_unused(accelerator) if is_embeddings else ""
        return f"{BORROWED}{reason}{unused}"
