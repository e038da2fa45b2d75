"""Members of engines from what users list: devices, engines, models, processes, servers, "auto".

Which devices of this machine compute where none are listed follows WindVE 4.3, Alg. 2. Differs: as
printed, the algorithm falls to the processor where both kinds are there and only one is to be used,
and never says that both are; the paper's text, which is followed here, says the opposite of both.
"""

from __future__ import annotations

import copy
import importlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rag_accel.accelerator.local_llms import as_local_llm
from rag_accel.config import EmbeddingRuntime, Options
from rag_accel.engine_api import Engine, PrimitiveKind
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.engines.embedding.same_model import tensors
from rag_accel.errors import ConfigError
from rag_accel.requests.engines import is_engine, role_engine

if TYPE_CHECKING:
    from rag_accel.engines.devices.group import DeviceGroup
    from rag_accel.engines.devices.members import Member


AUTO = "auto"
"""What stands for the devices that are found here, instead of a list."""


def is_auto(given: object) -> bool:
    """Tell whether the devices that are found here were asked for."""
    return isinstance(given, str) and given == AUTO


def choose_devices(
    accelerators: Sequence[str], processors: Sequence[str], uses_both: bool = True
) -> tuple[str, ...]:
    """Return which of the devices that were found compute, the most preferred first.

    ``(cuda:0, cuda:1), (cpu)`` -> ``(cuda:0, cuda:1, cpu)``: the processor is given what the others
    cannot end in time.

    Args:
        accelerators: in order of preference.
        processors: of them one computes, with all its cores: a machine has one instance there.
        uses_both: whether the processor computes as well as accelerators; it always does alone.

    Raises:
        ConfigError: nothing was found.
    """
    found = (*accelerators, *(processors[:1] if uses_both or not accelerators else ()))
    if not found:
        raise ConfigError(
            "no device that computes embeddings was found",
            where='embedder="auto"',
            valid="a processor, or an accelerator that torch knows",
        )
    return found


def find_devices() -> tuple[str, ...]:
    """Return the devices that torch finds here, accelerators first; the processor is always one."""
    return choose_devices(_accelerators(), ("cpu",))


def auto_devices() -> tuple[str, ...] | None:
    """Return the devices found here; None for one processor, which any model has without a list."""
    found = find_devices()
    return None if found == ("cpu",) else found


def _accelerators() -> list[str]:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:  # what loads the model names the extra
        return []
    if torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        return ["mps:0"]
    return []


_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?")


def is_device(given: Any) -> bool:
    """Tell whether this names a device, such as ``cuda:0``."""
    return isinstance(given, str) and _DEVICE.fullmatch(given) is not None


def device_name(given: str) -> str:
    """Return the one name of a device: ``cuda`` is ``cuda:0``."""
    kind, _, number = given.partition(":")
    return kind if kind == "cpu" else f"{kind}:{number or 0}"


def is_sentence_transformer(given: Any) -> bool:
    """Tell whether this is a model of sentence-transformers, without importing it."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(given, library.SentenceTransformer)


def engine_on(device: str, others: Sequence[Any], runtime: EmbeddingRuntime) -> Engine:
    """Return an engine on a device, with the model of the first other that has one.

    Args:
        device: its name.
        others: what else is listed: a model object is copied, a model's name loaded again; without
            any the packaged model is loaded.
        runtime: as of ``SentenceTransformerEngine``.

    Raises:
        ConfigError: there is no such device here, or the model cannot be put on it.
        ImportError: sentence-transformers or the packaged model is missing.
    """
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    with _put_on(device):
        model = _model_of(others)
        if model is not None and not isinstance(model, str):
            model = copy.deepcopy(model).to(device)
        return SentenceTransformerEngine(model, device=device, runtime=runtime)


@contextmanager
def _put_on(device: str) -> Iterator[None]:
    """Name a device that is not there, or that has no room for a model."""
    require_device(device)
    try:
        yield
    except (RuntimeError, OSError, MemoryError) as error:
        raise _refusal("a model cannot be put on a device", device, error) from error


def take_any_model(given: Sequence[Any]) -> bool:
    """Tell whether all that is listed computes whichever model it is given: it names none."""
    return bool(given) and all(is_device(entry) or _is_process(entry) for entry in given)


def _is_process(given: Any) -> bool:
    process = sys.modules.get("rag_accel.engines.devices.process")
    return (
        process is not None and isinstance(given, process.ProcessMember) and given.takes_any_model
    )


class CopiedModel:
    """A program's model, on the devices and in the processes of a list.

    On its own device it is the object itself, elsewhere a copy. Processes load it from a folder
    that only this user may read, and that is there until ``close``.

    Args:
        encoding: the model and its arguments of ``encode``.
        options: as of ``device_group``.
    """

    def __init__(self, encoding: ModelEncoding, options: Options) -> None:
        self._encoding = encoding
        self._options = options
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def member(self, given: Any) -> Member | None:
        """Return a member that computes the model where ``given`` says; None if that is no place.

        Raises:
            ConfigError: the model cannot be put there.
        """
        from rag_accel.engines.devices.members import EngineMember

        if is_device(given):
            return EngineMember(self._engine(given), max_texts=self._options.max_batch)
        if _is_process(given):
            return given.with_model(self._saved(), self._encoding)
        return None

    def close(self) -> None:
        """Delete the folder."""
        if self._folder is not None:
            self._folder.cleanup()

    def _engine(self, device: str) -> Engine:
        model = self._encoding.model
        if device_name(device) == device_name(str(model.device)):
            return self._encoding.engine(self._options)
        with _put_on(device):
            return self._encoding.engine(self._options, copy.deepcopy(model).to(device))

    def _saved(self) -> str:
        if self._folder is None:
            folder = tempfile.TemporaryDirectory(prefix="rag-accel-model-")
            self._folder = folder
            # A copy that shares the weights: transformers writes into the configuration of what it
            # saves, and a changed model leaves the devices.
            model = self._encoding.model
            shared: dict[int, Any] = {id(tensor): tensor for tensor in tensors(model)}
            copy.deepcopy(model, shared).save_pretrained(folder.name, create_model_card=False)
        return self._folder.name


def _model_of(others: Sequence[Any]) -> Any:
    for other in others:
        model = other if is_sentence_transformer(other) else getattr(other, "model", None)
        if isinstance(model, str) or is_sentence_transformer(model):
            return model
    return None


def require_device(device: str) -> None:
    """Raise a ConfigError unless a device is there, as far as its library can tell."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return  # what loads the model names the extra
    try:
        torch.empty(1, device=device)
    except Exception as error:  # each backend raises its own
        raise _refusal("a device of a list of embedders is not there", device, error) from error


def _refusal(what: str, device: str, error: Exception) -> ConfigError:
    torch: Any = importlib.import_module("torch")
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    return ConfigError(
        what,
        where=device,
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        valid=", ".join(there),
        hint="leave the device out of the list, or make it visible to this process",
    )


def device_group(name: str, given: Sequence[Any], options: Options, cores: int) -> DeviceGroup:
    """Return one engine over all embedders listed, the most preferred one first.

    Args:
        name: what stages call it.
        given: engines that embed or names of such, SentenceTransformer objects, devices (the model
            of the others there is computed there too, else the packaged one), or members.
        options: ``embedding_slo_s``, ``member_tolerance``, ``reproducible`` and limits.
        cores: threads that members here may use.

    Raises:
        ConfigError: nothing was listed, something twice or that embeds nothing, a device that is
            not there, or a first member that cannot embed.
    """
    return group_of(listed_members(name, given, options), options, cores)


def group_of(members: Sequence[Member], options: Options, cores: int) -> DeviceGroup:
    """Return one engine over members, the most preferred one first. Raises as ``DeviceGroup``."""
    from rag_accel.engines.devices.group import DeviceGroup

    return DeviceGroup(
        members,
        slo_s=options.embedding_slo_s,
        tolerance=options.member_tolerance,
        reproducible=options.reproducible,
        refuses_late=options.on_full == "raise",
        step_timeout_s=options.step_timeout_s,
        threads=cores,
    )


def listed_members(
    name: str, given: Sequence[Any], options: Options, model: CopiedModel | None = None
) -> list[Member]:
    """Return a member for each thing listed; those made here are closed if a later one fails.

    Args:
        name: what stages call the list.
        given: what is listed.
        options: as of ``device_group``.
        model: what devices and processes compute; None for the model of the list.

    Raises:
        ConfigError: something was listed twice, embeds nothing, or is a device that is not there.
    """
    require_apart(name, given)
    members: list[Member] = []
    try:
        for entry in given:
            copied = None if model is None else model.member(entry)
            members.append(copied or _member(name, entry, given, options))
    except BaseException:
        for member, entry in zip(members, given, strict=False):
            if member is not entry and getattr(member, "engine", None) is not entry:
                member.close()
        raise
    _name_apart(members)
    return members


def _member(name: str, given: Any, others: Sequence[Any], options: Options) -> Member:
    from rag_accel.engines.devices.members import EngineMember, Member
    from rag_accel.engines.embedding.engine import SentenceTransformerEngine

    max_texts, runtime = options.max_batch, options.embedding_runtime
    if is_device(given):
        return EngineMember(engine_on(given, others, runtime), max_texts=max_texts)
    if is_sentence_transformer(given):
        engine = SentenceTransformerEngine(given, runtime=runtime)
        return EngineMember(engine, max_texts=max_texts)
    engine = role_engine(name, given) if isinstance(given, str) else given
    if is_engine(engine) and PrimitiveKind.EMBEDDING in engine.profile.kinds:
        return EngineMember(engine, max_texts=max_texts)
    if isinstance(engine, Member):
        return engine
    raise ConfigError(
        "this cannot be a member of a list of embedders",
        where=f"{name}=",
        found=f"{type(given).__module__}.{type(given).__qualname__}",
        valid="an engine that embeds or the name of one, a SentenceTransformer, a device such as "
        "'cpu' or 'cuda:0', a ProcessMember or a RemoteMember",
        hint="make an engine of a function: rag_accel.engines.CallableEmbeddingEngine(function)",
    )


def require_apart(name: str, given: Sequence[Any]) -> None:
    """Refuse what would be one device or one model object for two members.

    Raises:
        ConfigError: something is listed twice.
    """
    seen: dict[object, Any] = {}
    for entry in given:
        for key in _own_things(entry):
            if key in seen:
                raise ConfigError(
                    "an embedder was listed twice",
                    where=f"{name}=",
                    found=key if isinstance(key, str) else type(entry).__qualname__,
                    valid="a device, an engine and a model object of its own for each member",
                )
            seen[key] = entry


def _own_things(given: Any) -> list[object]:
    """Return keys of the things that only one member may have."""
    if isinstance(given, str):
        return [device_name(given)] if is_device(given) else []
    model = getattr(given, "model", None)
    return [id(given), *([id(model)] if is_sentence_transformer(model) else [])]


def _name_apart(members: Sequence[Member]) -> None:
    """Number members of one name, so that reports tell them apart."""
    seen: Counter[str] = Counter()
    for member in members:
        seen[member.name] += 1
        if seen[member.name] > 1:
            member.name = f"{member.name}-{seen[member.name]}"


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
        return auto_devices()
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


POOLED: Final = frozenset({"llm", "index", "reranker"})
"""Names under which a list is a pool; elsewhere one of engines that do not embed is."""


def pooled(
    name: str, given: Any, make_llm: Callable[[Any], Engine], step_timeout_s: float
) -> Engine | None:
    """Return the pool that a list becomes; None for anything else.

    Args:
        name: what stages call it.
        given: what the user gave.
        make_llm: makes an engine of a language model that users name.
        step_timeout_s: after so much time a step of a member is lost, and the member with it.

    Raises:
        ConfigError: a member of such a list is no engine, or they do not do the same.
    """
    if not isinstance(given, list | tuple):
        return None
    members: list[Any] = [*given]  # pyright: ignore[reportUnknownArgumentType]
    if name not in POOLED and not (members and all(map(_is_pooled, members))):
        return None
    from rag_accel.engines.replicas.pool import EnginePool

    engines: list[Engine] = []
    try:
        engines.extend(_engine(name, member, make_llm) for member in members)
        return EnginePool(engines, step_timeout_s=step_timeout_s)
    except BaseException:
        for engine in engines:
            engine.close()
        raise


def _is_pooled(member: Any) -> bool:
    if is_engine(member):
        return PrimitiveKind.EMBEDDING not in member.profile.kinds
    return as_local_llm("", member) is not None


def _engine(name: str, member: Any, make_llm: Callable[[Any], Engine]) -> Engine:
    llm = as_local_llm(name, member)
    if llm is not None:
        return make_llm(llm)
    engine = role_engine(name, member)
    if is_engine(engine):
        return engine
    raise ConfigError(
        "a list of engines holds something else",
        where=f"{name}=",
        found=f"{type(member).__module__}.{type(member).__qualname__}",
        valid="engines, language models by name or object, and indexes",
        hint="give a callable alone, and let it choose by itself",
    )
