"""Any owned engine in child processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import Engine
from rag_accel.engines.option_checks import check_whole
from rag_accel.engines.replicas.child_process import ChildProcess
from rag_accel.engines.replicas.engine import HostedEngine
from rag_accel.engines.replicas.host import EngineHost
from rag_accel.engines.replicas.options import ReplicaOptions
from rag_accel.engines.replicas.spec import EngineSpec
from rag_accel.errors import ConfigError
from rag_accel.system.processor import usable_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(ReplicaOptions):
    """The cores, number and bounds of the child processes that host an engine.

    Args:
        threads: on which each process computes; by default all cores, shared by the most replicas.
        cpus: the cores that they may run on; by default all that this process may use.
        others: as of ``ReplicaOptions``.

    Raises:
        ConfigError: an option out of range.
    """

    threads: int | None = None
    cpus: Collection[int] | None = None

    def __post_init__(self) -> None:
        ReplicaOptions.__post_init__(self)
        check_whole("ProcessOptions.threads", self.threads, 1)
        if self.cpus is not None and not isinstance(self.cpus, Collection):
            raise ConfigError(
                "cores are given by their numbers",
                where="ProcessOptions.cpus",
                found=repr(self.cpus),
                valid="a list such as [0, 1]",
            )

    @property
    def granted_threads(self) -> int:
        """Return the threads on which each process computes."""
        cores = usable_cores() if self.cpus is None else len(self.cpus)
        return self.threads or max(1, cores // self.most_replicas)


class ProcessEngine(HostedEngine):
    """An engine that runs in one or more child processes of this machine; see ``HostedEngine``.

    Each is a new interpreter, which ends with this process however that ends. What a child prints
    or leaks, and a crash of a library in it, stay there.

    Args:
        factory: of the engine: a name of the entry points ``rag_accel.engines`` such as
            ``"local"``, a ``"module:attribute"``, or a function or class of a module.
        arguments: of the factory, by name. They travel pickled; name models and files rather than
            pass them.
        options: the cores, number and bounds of the processes.
        clock: is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: an unknown factory, arguments that cannot be pickled, cores that this process
            may not use, or no interpreter to start.
        EngineError: a process has not made its engine in time.
        Exception: whatever the factory raises.
    """

    def __init__(
        self,
        factory: str | Callable[..., Engine],
        arguments: Mapping[str, Any] | None = None,
        options: ProcessOptions | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        options = options or ProcessOptions()
        spec = EngineSpec.of(factory, arguments, "ProcessEngine")
        name = f"ProcessEngine({spec.factory!r})"
        host = partial(
            ChildProcess,
            name,
            partial(EngineHost, spec, options.granted_threads),
            cpus=None if options.cpus is None else frozenset(options.cpus),
            restarts=options.max_restarts,
        )
        super().__init__(name, host, options, clock)
