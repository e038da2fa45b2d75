"""Parts of programs that engines here may run: how they run, and the options that they read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rag_accel.accelerator import Accelerator, default_accelerator
from rag_accel.accelerator.preparation import EngineAt, left_s
from rag_accel.adoption import embedding_calls, local_llms, served_llms
from rag_accel.adoption.clients import RERANK, cross_encoder_engine
from rag_accel.adoption.embeddings import KnownEmbeddings
from rag_accel.adoption.proxies import ProxyClasses
from rag_accel.config import is_enabled
from rag_accel.interception.explanation import BORROWED, component
from rag_accel.interception.fallback import with_fallback
from rag_accel.interception.identity import activated
from rag_accel.interception.leaf_table import (
    AROUND_PARTS,
    NO_ENGINE,
    Framework,
    is_scheduled,
    leaf_base,
    leaf_class,
)
from rag_accel.interception.option_reach import ADOPTED_EMBEDDINGS, ADOPTED_LLM, SERVED_LLM
from rag_accel.scheduler.messages import EngineName
from rag_accel.system.methods import plain_class

_NONE = ProxyClasses({})
_WHERE = "prepare"


@dataclass(frozen=True, slots=True)
class RecognisedParts:
    """The recognised leaves of a framework's programs.

    Args:
        base: the base class of embeddings objects.
        embeddings: the embeddings classes that are known.
        proxies: the classes whose objects have proxies.
        searched: returns why no engine runs the searches of a store or retriever of a known class,
            empty where one does; None for another object.
        instead: components of this library that run on engines, by the base class of what they
            would replace.
    """

    base: type
    embeddings: KnownEmbeddings
    proxies: ProxyClasses = _NONE
    searched: Callable[[Any], str | None] = lambda leaf: None
    instead: Mapping[type, str] = field(default_factory=dict[type, str])

    def reads(self, leaf: Any) -> frozenset[str]:
        """Return the options that a leaf reads."""
        cls = plain_class(type(leaf))
        reads = frozenset[str]()
        adopted = self.embeddings.adopt(leaf, cls)
        if adopted is not None and adopted.hosted is None:
            reads |= ADOPTED_EMBEDDINGS
        known = self.proxies.fitting(leaf)
        if known is not None and known.model is not None:
            reads |= ADOPTED_LLM
        if known is not None and known.is_served:
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
        adopted = self.embeddings.adopt(leaf, cls)
        if adopted is not None:
            return embedding_calls.describe(adopted, accelerator)
        if (how := others(leaf)) is not None:
            return how
        known = self.proxies.fitting(leaf)
        if known is None:
            return None
        if known.model is not None:
            samples = known.samples(leaf)
            return local_llms.describe(accelerator, known.model(leaf), samples=samples)
        if known.is_served:
            return served_llms.describe(accelerator)
        return known.describe(accelerator.options)

    def prepared_engine(self, leaf: Any, accelerator: Accelerator) -> EngineAt | None:
        """Return the engine that computes here for a leaf, made if need be; None without one.

        It is on the accelerator that is given, unless a component has one of its own.

        Raises:
            Exception: whatever a component raises while its model is loaded.
        """
        cls = plain_class(type(leaf))
        if is_scheduled(cls):
            prepared_engine = getattr(cls, "prepared_engine", None)
            return None if prepared_engine is None else prepared_engine(leaf, accelerator)
        recognised = partial(self._recognised_engine, leaf, cls, accelerator)
        return with_fallback(accelerator, recognised, lambda: None, _WHERE)

    def _recognised_engine(self, leaf: Any, cls: type, accelerator: Accelerator) -> EngineAt | None:
        adopted = self.embeddings.adopt(leaf, cls)
        if adopted is not None:
            return embedding_calls.prepared_engine(accelerator, adopted, leaf)
        known = self.proxies.fitting(leaf)
        if known is not None and known.model is not None:
            return local_llms.prepared_engine(accelerator, known.model(leaf), leaf)
        if known is None or known.cross_encoder is None:
            return None
        scorer = known.cross_encoder(leaf)
        make = partial(cross_encoder_engine, scorer)
        return accelerator, accelerator.own(scorer, RERANK, make, holder=leaf)

    def prepare(
        self, framework: Framework, program: Any, own: Accelerator | None, timeout_s: float
    ) -> bool:
        """Prepare what computes here for a program; tell whether that took no longer.

        Args:
            framework: of the program.
            program: whose parts may be such leaves.
            own: the accelerator it was given; None for that of the moment.
            timeout_s: as of ``Accelerator.prepare``.
        """
        if not is_enabled():
            return True
        accelerator = own or activated() or default_accelerator()
        end = time.monotonic() + timeout_s
        prepared = partial(self.prepared_engine, accelerator=accelerator)

        def engines(leaves: Iterable[Any]) -> Iterator[EngineName]:
            return (engine for _, engine in filter(None, map(prepared, leaves)))

        def is_ready(on: Accelerator, leaves: Iterable[Any]) -> bool:
            run = partial(on.prepare_engines, partial(engines, leaves), left_s(end))
            return with_fallback(on, run, lambda: False, _WHERE)

        with accelerator.embedders.preparations.begun():
            held: dict[Accelerator, list[Any]] = {}
            # A leaf whose engine cannot be made is left out from now on.
            for _, leaf in framework.parts_of(program):
                found = prepared(leaf)
                if found is not None:
                    held.setdefault(found[0], []).append(leaf)
            ready = [is_ready(on, leaves) for on, leaves in held.items()]
        return all(ready)

    def borrowed(self, leaf: Any, accelerator: Accelerator) -> str:
        """Return how a leaf runs that no engine runs, and why none does."""
        is_embeddings = isinstance(leaf, self.base)
        unused = embedding_calls.describe_unused(accelerator) if is_embeddings else ""
        return f"{BORROWED} ({self.why_not(leaf, accelerator)}){unused}"

    def why_not(self, leaf: Any, accelerator: Accelerator | None) -> str:
        """Return why no engine runs a leaf, and what would change that; empty where one does.

        Without an accelerator, as before the first call, a local language model counts as run:
        whether one may is looked at later.
        """
        cls = plain_class(type(leaf))
        if is_scheduled(cls):
            return ""
        if self.embeddings.adopt(leaf, cls) is not None:
            return ""
        found = self.embeddings.why_not(leaf, cls)
        if found is None:
            found = self.searched(leaf)
        if found is None:
            found = self._why_no_proxy(leaf, accelerator)
        return self._why_unknown(leaf, cls) if found is None else found

    def _why_no_proxy(self, leaf: Any, accelerator: Accelerator | None) -> str | None:
        if (obstacle := self.proxies.why_not(leaf)) is not None:
            return obstacle
        known = self.proxies.find(plain_class(type(leaf)))
        if known is None or accelerator is None:
            return None if known is None else ""
        if known.model is not None:
            samples, model = known.samples(leaf), known.model(leaf)
            return local_llms.why_plain(accelerator, model, is_sampled=samples) or ""
        if known.is_served:
            is_changed = accelerator.options.endpoint_limits or served_llms.changes(accelerator)
            return "" if is_changed else served_llms.UNCHANGED
        return known.switched_off(accelerator.options)

    def _why_unknown(self, leaf: Any, cls: type) -> str:
        known = (name for base, name in self.instead.items() if issubclass(cls, base))
        component = next(known, None)
        held = [] if leaf_base(cls) is None else held_leaves(leaf)
        # A store that holds nothing but embeddings searches by itself.
        searches = component is not None and all(isinstance(part, self.base) for part in held)
        if held and (isinstance(leaf, self.base) or not searches):
            return AROUND_PARTS
        return NO_ENGINE if component is None else f"{NO_ENGINE}; {component}"


def held_leaves(leaf: Any) -> list[Any]:
    """Return the leaves that a leaf has in its attributes, as a retriever has its store."""
    held = leaf_class(plain_class(type(leaf))).framework.held_by(leaf)
    return [part for part in held if part is not leaf and leaf_base(type(part)) is not None]
