"""The served object of each tenant, each on an accelerator with the tenant's namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.config import OnFull, Options
from rag_accel.errors import ClosedError, ConfigError
from rag_accel.registry import Registry, served_registry
from rag_accel.serving.native import serve_native
from rag_accel.serving.served import Served, ServedEmbedder, ServedProgram, ServingTerms
from rag_accel.serving.target import ServingTarget

_logger = logging.getLogger(__name__)

MOST_TENANTS = 256
"""Most tenants of one server; each has engines of its own."""


@dataclass(frozen=True, slots=True)
class MadeTenants:
    """New objects that answer, by tenant, and the accelerators that are closed with them.

    ``preparations`` are what is to be done before their first requests.
    """

    served: dict[str, Served] = field(default_factory=dict[str, Served])
    accelerators: dict[str, Accelerator] = field(default_factory=dict[str, Accelerator])
    preparations: list[Callable[[float], object]] = field(
        default_factory=list[Callable[[float], object]]
    )

    def prepare(self, timeout_s: float) -> None:
        """Prepare them, each for at most ``timeout_s`` beside the loading of its models.

        What fails is logged: it fails again with the request that needs it, and is told there.
        """
        for prepare in self.preparations:
            try:
                prepare(timeout_s)
            except ClosedError:
                return
            except Exception as error:
                _logger.warning("not prepared: %s: %s", type(error).__name__, error)

    def close(self) -> None:
        """Close what was made, as it will not be used."""
        for accelerator in self.accelerators.values():
            accelerator.close()


class ServedTenants:
    """The objects that answer, by tenant; the accelerators made here are closed with it.

    Args:
        target: the object.
        inputs: the names that a client may set; None if the command names none.
        plain: leave the object as it is.
        on_full: of the accelerators made here; a new request that an embedder would answer too
            late is refused by default, not held.
        registry: the factories; by default the installed ones.
    """

    def __init__(
        self,
        target: ServingTarget,
        *,
        inputs: tuple[str, ...] | None = None,
        plain: bool = False,
        on_full: OnFull = "raise",
        registry: Registry[Any] | None = None,
    ) -> None:
        self.name = target.name
        self._target, self._inputs, self._plain = target, inputs, plain
        self._on_full: OnFull = on_full
        self._registry = registry or served_registry()
        self._served: dict[str, Served] = {}
        #: what is closed with a tenant
        self._made: dict[str, Accelerator] = {}

    def add(self, namespaces: Iterable[str]) -> MadeTenants:
        """Make the object answer for further tenants. Returns and raises as ``make``."""
        made = self.make(namespaces)
        self.put(made)
        return made

    def make(self, namespaces: Iterable[str]) -> MadeTenants:
        """Return what answers for tenants, made where it is not there; from any thread.

        Nothing here changes before ``put``; no tenant that is asked for may be dropped meanwhile.

        Raises:
            ConfigError: the object cannot be served, or not to several tenants.
        """
        names = tuple(namespaces)
        if len(names) > MOST_TENANTS:
            raise ConfigError(
                "there are too many tenants",
                where="--token-file",
                found=len(names),
                valid=f"up to {MOST_TENANTS}",
            )
        made = MadeTenants()
        try:
            for namespace in names:
                if namespace not in self._served:
                    self._make(namespace, made)
            there = {name: self._served[name] for name in names if name in self._served}
            self._check_alone({**there, **made.served})
        except BaseException:
            made.close()
            raise
        return made

    def put(self, made: MadeTenants) -> None:
        """Have what was made answer."""
        self._served = {**self._served, **made.served}
        self._made |= made.accelerators

    def drop(self, namespace: str) -> Accelerator | None:
        """Forget a tenant; return its own accelerator, which is to be closed, if it has one."""
        self._served = {name: one for name, one in self._served.items() if name != namespace}
        return self._made.pop(namespace, None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._served)

    def of(self, namespace: str) -> Served:
        """Return what answers for a tenant that was added."""
        return self._served[namespace]

    @property
    def accelerators(self) -> dict[str, Accelerator]:
        """Return what schedules the work, by tenant; without those served as they are."""
        found = {name: served.accelerator for name, served in self._served.items()}
        return {name: one for name, one in found.items() if one is not None}

    def close(self) -> None:
        """Close the accelerators that were made here."""
        for accelerator in self._made.values():
            accelerator.close()

    def _make(self, namespace: str, made: MadeTenants) -> None:
        obj, given = self._target.for_tenant(namespace)
        if isinstance(obj, ServedProgram | ServedEmbedder):
            made.served[namespace] = obj
            return
        if given is not None and given.closed and self._target.make is not None:
            raise ConfigError(
                "the accelerator is closed", where=self.name, found=f"tenant {namespace!r}"
            )
        options = Options.load(namespace=namespace, on_full=self._on_full)
        on = given or Accelerator(options=options)
        if given is None or self._target.make is not None:
            made.accelerators[namespace] = on  # made for this tenant alone
        terms = ServingTerms(on, self._inputs, self._plain)
        served = serve_native(obj, given, terms) or self._offer(obj, terms)
        if given is None and served.accelerator is not on:
            made.accelerators.pop(namespace).close()
        made.served[namespace] = served
        made.preparations.extend(terms.preparations)

    def _offer(self, obj: Any, terms: ServingTerms) -> Served:
        missing: list[str] = []
        for name in self._registry.names():
            try:
                served = self._registry.get(name)(obj, terms)
            except ImportError as error:  # another framework, most likely
                missing.append(f"{name}: {error}")
                continue
            if served is not None:
                return served
        kind = type(obj)
        raise ConfigError(
            "this object cannot be served",
            where=self._target.name,
            found=f"{kind.__module__}.{kind.__qualname__}",
            valid="a RAGraph with an accelerator, an Accelerator(embedder=...), or an object of "
            + (", ".join(self._registry.names()) or "no installed integration"),
            hint="; ".join(missing) or "serve a chain, a graph or an engine that answers",
        )

    def _check_alone(self, served_by: Mapping[str, Served]) -> None:
        """Refuse several tenants on one accelerator, whose results they would share."""
        for namespace, served in served_by.items():
            on = served.accelerator
            if on is not None and on.options.namespace != namespace:
                raise ConfigError(
                    "the object has an accelerator of its own, which serves one tenant",
                    where=self.name,
                    found=f"tenant {namespace!r} and namespace {on.options.namespace!r}",
                    valid=f"--namespace {on.options.namespace!r}, and no other tenant",
                    hint="serve the object without its accelerator, and each tenant gets one",
                )
            if on is None and len(served_by) > 1:
                raise ConfigError(
                    "an object that is served as it is knows no tenants",
                    where="--token-file",
                    found=f"{len(served_by)} tenants",
                    valid="one tenant",
                )
