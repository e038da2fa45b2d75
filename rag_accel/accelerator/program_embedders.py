"""The embedding models that programs bring along, on the devices that a user has listed.

A list that names no model takes each program's own, one group for each; a list with models of its
own serves the programs whose model is shown to be the same. Either is prepared in a thread beside
the program, whose texts go to an engine of their model alone until then.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rag_accel.accelerator.engine_table import EngineTable, watch
from rag_accel.accelerator.listed_members import (
    CopiedModel,
    auto_devices,
    check_devices,
    device_group,
    group_of,
    is_auto,
    is_sentence_transformer,
    listed_members,
    take_any_model,
)
from rag_accel.accelerator.preparation import Preparations, left_s
from rag_accel.config import Options
from rag_accel.engine_api import Engine, TextBatch
from rag_accel.engines.devices.members import FormedTexts, TextForm
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.errors import ClosedError, ConfigError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.scheduler.messages import EngineName

if TYPE_CHECKING:
    from rag_accel.engines.devices.group import DeviceGroup
    from rag_accel.engines.embedding.checked_vectors import Vector


Role = Literal["query", "document"]
Vectors: TypeAlias = "Mapping[Role, Vector]"


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """The placement of a program's model on several devices.

    Args:
        engine: the group's name.
        forms: the arguments of ``encode`` that the group does not have of itself, by role.
    """

    engine: EngineName
    forms: Mapping[Role, TextForm] | None = None

    def texts(self, texts: tuple[str, ...], role: Role, keep: bool) -> TextBatch:
        """Return texts as work for the group."""
        if self.forms is None:
            return TextBatch(texts, role, keep)
        return FormedTexts(texts, role, keep, self.forms[role])


def forms_around(
    encoding: ModelEncoding, group: DeviceGroup, own: Vectors, options: Options, cores: int
) -> dict[Role, TextForm] | None:
    """Return the arguments to honour around a group of the bare model; None if it is none.

    Args:
        encoding: the model and its arguments of ``encode``.
        group: its members know no such arguments.
        own: the program's vectors of the probes.
        options: ``member_tolerance`` and how the model is computed here.
        cores: with how many threads.
    """
    from rag_accel.engines.devices.fidelity import probe_texts
    from rag_accel.engines.devices.members import form_for

    queries, documents = form_for(encoding.query_kwargs), form_for(encoding.document_kwargs)
    if queries is None or documents is None:
        return None
    forms: dict[Role, TextForm] = {"query": queries, "document": documents}
    bare, tolerance = ModelEncoding(encoding.model, {}, {}), options.member_tolerance
    if other_vectors(vectors_of(bare, options, cores), group.expected, tolerance):
        return None
    given: dict[Role, tuple[str, ...]] = {
        role: form.texts(probe_texts()) for role, form in forms.items()
    }
    found = vectors_of(bare, options, cores, given)
    formed: dict[Role, Vector] = {
        role: forms[role].finished(vectors) for role, vectors in found.items()
    }
    return None if other_vectors(own, formed, tolerance) else forms


def vectors_of(
    encoding: ModelEncoding,
    options: Options,
    cores: int,
    texts: Mapping[Role, tuple[str, ...]] | None = None,
) -> Vectors:
    """Return a program's vectors by role, ``[texts, dim], float32``; by default of the probes."""
    from rag_accel.engines.devices.fidelity import embedded, probe_texts
    from rag_accel.engines.devices.members import ROLES, EngineMember

    probes = probe_texts()
    member = EngineMember(encoding.engine(options))
    try:
        return {
            role: embedded(member, probes if texts is None else texts[role], role, cores)
            for role in ROLES
        }
    finally:
        member.close()


def other_vectors(own: Vectors, expected: Vectors, tolerance: float | None) -> str | None:
    from rag_accel.engines.devices.fidelity import compare

    for role, vectors in own.items():
        if vectors.shape != expected[role].shape:
            return f"its vectors have {vectors.shape[1]} components, not {expected[role].shape[1]}"
        found = compare(expected[role], vectors)
        if not found.is_within(tolerance):
            return f"other vectors of the {role} probes than the first member's: {found}"
    return None


def other_model(encoding: ModelEncoding, group: DeviceGroup) -> str | None:
    """Return the known differences of a program's model from the first member's."""
    from rag_accel.engines.embedding.same_model import difference

    theirs = group.reference_model
    if not is_sentence_transformer(theirs):
        return None
    found = difference(encoding.model, theirs)
    return None if found is None else f"the list has another model: {found}"


def not_admitted(group: DeviceGroup, namespace: str) -> str | None:
    """Return whose texts no member may be given; None if there are none such."""
    for role in ("query", "document"):
        if not group.admits(role, namespace):
            return f"no member may be given a {role} of namespace {namespace!r}"
    return None


logger = logging.getLogger("rag_accel.engines")

Devices = tuple[Any, ...]
_Key = tuple[int, int, str]

#: classes that are warned of; a program may make one for every request
_MOST_NAMED = 256
_CHANGED = "the model was changed since it was compared"
_CLOSED = "the accelerator is closed"


@dataclass(slots=True)
class _Placing:
    """A model that is, was or will be on the devices of a list.

    Args:
        encoding: the model and its arguments of ``encode``.
        devices: those that take it; None for the group of a list with models of its own.
    """

    encoding: ModelEncoding
    devices: Devices | None
    state: Literal["waiting", "placed", "out"] = "waiting"
    reason: str = ""
    #: of the group of a list with models of its own
    placed: PlacedModel | None = None
    group: DeviceGroup | None = None
    is_same: Callable[[], bool] | None = None
    #: whose use this is, by their ids; None for those that cannot tell when they go
    holders: dict[int, weakref.ref[Any] | None] = field(
        default_factory=dict[int, "weakref.ref[Any] | None"]
    )
    #: those that join, for an end before they have
    members: Sequence[Any] = ()
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def variant(self) -> str:
        """Return the variant of its engine among those of the model."""
        return f"devices {id(self.devices)} {self.encoding.variant}"


class ProgramEmbedders:
    """The multi-device engines that embed for the models of programs. Thread-safe.

    Args:
        options: as of ``device_group``.
        cores: threads that members here may use.
        table: of the accelerator's engines.
    """

    def __init__(self, options: Options, cores: int, table: EngineTable) -> None:
        self._options = options
        self._cores = cores
        self._table = table
        #: what was listed, if it takes any model
        self.devices: Devices | None = None
        #: the group of a list with models of its own
        self.group: tuple[EngineName, DeviceGroup] | None = None
        self._placings: dict[_Key, _Placing] = {}
        self._threads: list[threading.Thread] = []
        self._unused: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        #: one model after the other, so that none is compared while another takes the cores
        self._turn = threading.Lock()
        self.preparations = Preparations()

    def has_devices(self, devices: Devices | None = None) -> bool:
        """Tell whether devices are listed for a model, by its owner or by the accelerator's."""
        return devices is not None or self.devices is not None or self.group is not None

    def engine(
        self, encoding: ModelEncoding, holder: Any, devices: Devices | None = None
    ) -> PlacedModel | None:
        """Return where several devices embed as ``encoding`` does; None if they do not.

        The first call for a model begins to place it, and returns None until that is done.

        Args:
            encoding: the model and its arguments of ``encode``.
            holder: whose use this is; an engine goes with the last holder.
            devices: listed by the owner of the model, instead of those of the accelerator.
        """
        devices = self.devices if devices is None else devices
        key = (id(devices), id(encoding.model), encoding.variant)
        placing = self._placings.get(key) or self._begin(key, encoding, devices)
        if id(holder) not in placing.holders:
            self._hold(key, placing, holder)
        if placing.state != "placed":
            return None
        assert placing.is_same is not None, "a placed model is watched"
        if not placing.is_same():
            self._leave(placing)
            return None
        if placing.devices is None:
            return placing.placed
        engine = self._table.hold(encoding.model, placing.variant, holder)
        if engine is not None:
            return PlacedModel(engine)
        if self._placings.get(key) is placing:  # its last holder had gone
            self._placings.pop(key, None)
        return None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all that ``prepare`` does is done, and each model placed or known to stay out.

        Without ``prepare`` no model is placed before its first call, so there is none to wait for.

        Args:
            timeout_s: the most seconds; None for as long as it takes.

        Returns:
            Whether it came to that in time.
        """
        end = time.monotonic() + (threading.TIMEOUT_MAX if timeout_s is None else timeout_s)
        return self.preparations.wait(end) and self.wait_for_placements(end)

    def wait_for_placements(self, end: float) -> bool:
        """Wait as ``wait`` until a time of the monotonic clock, for models being placed alone."""
        waiting = list(self._placings.values())
        return all(placing.is_over.wait(left_s(end)) for placing in waiting)

    def describe(self, encoding: ModelEncoding, devices: Devices | None = None) -> str:
        """Return where a model is computed, or why not on the devices listed."""
        devices = self.devices if devices is None else devices
        placing = self._placings.get((id(devices), id(encoding.model), encoding.variant))
        if placing is None or placing.state == "waiting":
            return "on the listed devices once its vectors there are shown to be its own"
        if placing.state == "out" or placing.group is None:
            return f"not on the listed devices: {placing.reason}"
        return "on the listed devices: " + "; ".join(placing.group.describe_parts())

    def warn_unused(self, cls: type, why: str) -> None:
        """Say once for a class that the devices listed do not compute what its objects embed."""
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name in self._unused or len(self._unused) >= _MOST_NAMED:
            return
        self._unused.add(name)
        logger.warning("%s embeds as before, not on the devices listed: %s", name, why)

    def stop(self) -> None:
        """Let no model be placed any more, and end members that have not joined yet."""
        with self._lock:
            self._closed = True
            waiting = [placing for placing in self._placings.values() if placing.state == "waiting"]
        for placing in waiting:
            _abort(placing.members)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads that place models, after ``stop``."""
        for thread in self._threads:
            thread.join(timeout_s)

    # Begin and end.

    def _begin(self, key: _Key, encoding: ModelEncoding, devices: Devices | None) -> _Placing:
        with self._lock:
            known = self._placings.get(key)
            if known is not None:
                return known
            placing = self._placings[key] = _Placing(encoding, devices)
            thread = threading.Thread(
                target=self._place, args=(placing,), name="rag-accel-placing", daemon=True
            )
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(thread)
            thread.start()
            return placing

    def _hold(self, key: _Key, placing: _Placing, holder: Any) -> None:
        is_watched = watch(holder, self, key, placing)
        placing.holders[id(holder)] = weakref.ref(holder) if is_watched else None

    def let_go(self, key: _Key, placing: _Placing, holder: int) -> None:
        """Forget a model with its last holder; runs wherever that is collected: no locks."""
        placing.holders.pop(holder, None)
        if not placing.holders and self._placings.get(key) is placing:
            self._placings.pop(key, None)

    def _leave(self, placing: _Placing) -> None:
        with self._lock:
            if placing.state != "placed":
                return
            placing.state, placing.reason, placing.group = "out", _CHANGED, None
        if placing.devices is not None:
            self._table.release(placing.encoding.model, placing.variant)
        logger.warning("a model leaves the devices listed for it: %s", _CHANGED)

    # On the thread that places a model.

    def _place(self, placing: _Placing) -> None:
        try:
            with self._turn:
                reason = _CLOSED if self._closed else self._tried(placing)
        except ClosedError:
            reason = _CLOSED
        except Exception as error:  # the program goes on without; explain() says why
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        placing.members = ()
        if reason is None:
            placing.state = "placed"
        else:
            placing.state, placing.reason, placing.group = "out", reason, None
            if not self._closed and reason is not _CLOSED:
                logger.warning("a model is not computed on the devices listed: %s", reason)
        placing.is_over.set()

    def _tried(self, placing: _Placing) -> str | None:
        """Return None once a model is placed, else why it stays where it is."""
        from rag_accel.engines.embedding.same_model import watch_of

        models = [placing.encoding.model]
        if placing.devices is None and self.group is not None:
            listed = self.group[1].reference_model
            if is_sentence_transformer(listed) and listed is not models[0]:
                models.append(listed)
        watches = [watch for model in models if (watch := watch_of(model)) is not None]
        if len(watches) < len(models):
            return "changes of its model would not be seen"
        checks = [watch() for watch in watches]
        placing.is_same = lambda: all(check() for check in checks)
        own = vectors_of(placing.encoding, self._options, self._cores)
        if placing.devices is not None:
            return self._copied(placing, placing.devices, own)
        assert self.group is not None, "devices or a group were listed"
        engine, placing.group = self.group
        return self._shared(placing, engine, placing.group, own)

    def _shared(
        self, placing: _Placing, engine: EngineName, group: DeviceGroup, own: Vectors
    ) -> str | None:
        """Do as ``_tried`` with the group of a list that has models of its own."""
        encoding, options = placing.encoding, self._options
        reason = other_model(encoding, group) or not_admitted(group, options.namespace)
        if reason is not None:
            return reason
        placing.placed = PlacedModel(engine)
        reason = self._compared(placing, own)
        if reason is None:
            return None
        forms = forms_around(encoding, group, own, options, self._cores)
        if forms is None:
            return reason
        placing.placed = PlacedModel(engine, forms)
        return None if placing.is_same is not None and placing.is_same() else _CHANGED

    def _copied(self, placing: _Placing, devices: Devices, own: Vectors) -> str | None:
        model = CopiedModel(placing.encoding, self._options)
        try:
            placing.members = listed_members("embedder", devices, self._options, model)
            if self._closed:  # after the look of ``stop``
                _abort(placing.members)
            placing.group = group = group_of(placing.members, self._options, self._cores)
        finally:
            model.close()
        is_joined = False
        try:
            reason = self._compared(placing, own)
            if reason is None:
                is_joined = self._join(placing, group)
                reason = None if is_joined else "nothing uses it any more"
            return reason
        finally:
            if not is_joined:
                group.close()

    def _compared(self, placing: _Placing, own: Vectors) -> str | None:
        assert placing.group is not None, "there is something to compare with"
        assert placing.is_same is not None, "the model is watched"
        reason = other_vectors(own, placing.group.expected, self._options.member_tolerance)
        return reason or (None if placing.is_same() else _CHANGED)

    def _join(self, placing: _Placing, group: DeviceGroup) -> bool:
        """Let the scheduler know of a group that somebody still uses; tell whether one does."""
        model, is_joined = placing.encoding.model, False
        for known in list(placing.holders.values()):
            holder = None if known is None else known()
            if known is not None and holder is None:
                continue
            if is_joined:  # an engine whose first holder has gone is not made again
                self._table.hold(model, placing.variant, holder)
            elif not self._closed:
                self._table.own(model, "embedding", lambda: group, placing.variant, holder)
                is_joined = True
        return is_joined


def _abort(members: Sequence[Any]) -> None:
    from rag_accel.engines.devices.members import AbortableMember

    for member in members:
        if isinstance(member, AbortableMember):
            member.abort()


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
            given = auto_devices()
            if given is None:
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
