"""Embedders given as lists of devices, or as ``"auto"``, created at once or on first use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Any

from rag_accel.accelerator.device_groups import device_group, require_apart
from rag_accel.accelerator.engine_table import EngineTable
from rag_accel.accelerator.found_devices import find_devices, is_auto
from rag_accel.accelerator.listed_devices import is_device, require_device, take_any_model
from rag_accel.accelerator.program_embedders import ProgramEmbedders
from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.errors import ConfigError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.scheduler.messages import EngineName

_EMBEDDER = "embedder"


class ListedEmbedders:
    """The lists given to one accelerator. Thread-safe.

    A list of devices alone takes the models of programs, and the packaged one for graphs, which is
    made for the first graph that names the embedder.

    Args:
        options: as of ``device_group``.
        cores: threads that members here may use.
        table: of the accelerator's engines.
    """

    def __init__(self, options: Options, cores: int, table: EngineTable) -> None:
        self._options = options
        self._cores = cores
        #: the engines of programs' models on the devices listed
        self.programs = ProgramEmbedders(options, cores, table)
        #: makes what no graph has named so far
        self._waiting: dict[str, Callable[[], Engine]] = {}
        self._lock = threading.Lock()

    def engine(self, name: str, given: Any) -> Any:
        """Return the engine that a list becomes, other things as they are; None for later.

        Raises:
            ConfigError: as ``device_group``; of a list of devices alone, one that is not there.
        """
        if name in self._waiting:
            raise ConfigError("this engine name is taken", where=name, valid="another name")
        if name == _EMBEDDER and is_auto(given):
            given = find_devices().listed
            if given == ("cpu",):  # the engine that any model has without a list
                self._waiting[name] = partial(_packaged, self._options)
                return None
        if not isinstance(given, list | tuple) or name == "graph":  # where it may be triples
            return given
        devices: tuple[Any, ...] = tuple(given)  # pyright: ignore[reportUnknownArgumentType]
        if name != _EMBEDDER or not take_any_model(devices):
            return device_group(name, devices, self._options, self._cores)
        check_devices(name, devices)
        self.programs.devices = devices
        self._waiting[name] = partial(device_group, name, devices, self._options, self._cores)
        return None

    def joined(self, name: str, engine: EngineName, given: Any) -> None:
        """Let programs use the embedder that has joined, if it is a group of several members."""
        devices = sys.modules.get("rag_accel.engines.devices.group")
        if name == _EMBEDDER and devices is not None and isinstance(given, devices.DeviceGroup):
            self.programs.group = (engine, given)

    def wanted(self, names: Set[str]) -> Iterator[tuple[str, Engine]]:
        """Yield the engines among these names that are not made yet.

        Raises:
            ConfigError, ImportError: what ``device_group`` raises.
        """
        if not self._waiting:
            return
        with self._lock:
            for name in [name for name in self._waiting if name in names]:
                engine = self._waiting[name]()
                del self._waiting[name]
                yield name, engine


def names_of(graph: FrozenRAGraph) -> Set[str]:
    """Return the names of engines that the stages of a graph use."""
    return {name for stage in graph.stages for name in _names(stage)}


def component_devices(given: Any, where: str) -> tuple[Any, ...] | None:
    """Return the devices that a component lists for its model; None for none, or one processor.

    Args:
        given: None, ``"auto"``, or a list of devices and of ProcessMembers without a model.
        where: what takes them, for the error.

    Raises:
        ConfigError: something else, something twice, or a device that is not there.
    """
    if given is None:
        return None
    if is_auto(given):
        found = find_devices().listed
        return None if found == ("cpu",) else found
    is_list = isinstance(given, list | tuple)
    devices: tuple[Any, ...] = tuple(given) if is_list else ()  # pyright: ignore[reportUnknownArgumentType]
    if not take_any_model(devices):
        raise ConfigError(
            "these are no devices for the model of a component",
            where=where,
            found=repr(given),
            valid="a list of devices such as 'cpu' or 'cuda:0' and of ProcessMember(), or 'auto'",
            hint="list members with a model of their own in Accelerator(embedder=[...])",
        )
    check_devices(where, devices)
    return devices


def check_devices(name: str, devices: tuple[Any, ...]) -> None:
    """Raise a ConfigError if a device is listed twice or is not there."""
    require_apart(name, devices)
    for device in devices:
        if is_device(device):
            require_device(device)


def _packaged(options: Options) -> Engine:
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    return SentenceTransformerEngine(
        reproducible=options.reproducible, runtime=options.embedding_runtime
    )


def _names(stage: Any) -> Iterator[str]:
    for attribute in ("embedder", "engine"):
        name = getattr(stage, attribute, None)
        if isinstance(name, str):
            yield name
