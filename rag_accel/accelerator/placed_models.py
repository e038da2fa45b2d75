"""A program's model on several devices, and the proof that it is computed there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rag_accel.accelerator.listed_devices import is_sentence_transformer
from rag_accel.config import Options
from rag_accel.engine_api import TextBatch
from rag_accel.engines.devices.formed_texts import FormedTexts, TextForm
from rag_accel.engines.embedding.model_encoding import ModelEncoding
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
    from rag_accel.engines.devices.formed_texts import form_for

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
