"""Recognised embeddings objects on the devices listed, and the log line about the others."""

from __future__ import annotations

from functools import partial
from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.accelerator.program_embedders import PlacedModel
from rag_accel.recognition.embeddings import AdoptedEmbeddings
from rag_accel.scheduler.messages import EngineName

HOSTED = "its server computes its vectors"
NOT_KNOWN = "no engine of this library computes what it does"


def on_devices(
    accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any
) -> PlacedModel | None:
    """Return where several devices embed for an object; None for its usual engine."""
    embedders = accelerator.embedders
    if adopted.encoding is None or not embedders.has_devices(adopted.devices):
        return None
    return embedders.engine(adopted.encoding, holder, adopted.devices)


def usual_engine(accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any) -> EngineName:
    """Return the engine of a model that computes here, on its own device."""
    make = partial(adopted.make, accelerator.options)
    return accelerator.own(adopted.model, "embedding", make, adopted.variant, holder)


def prepared_engine(
    accelerator: Accelerator, adopted: AdoptedEmbeddings, holder: Any
) -> EngineAt | None:
    """Return what embeds for an object now, and begin to place its model; None for a server."""
    if adopted.hosted is not None:
        return None
    placed = on_devices(accelerator, adopted, holder)
    engine = usual_engine(accelerator, adopted, holder) if placed is None else placed.engine
    return accelerator, engine


def describe(adopted: AdoptedEmbeddings, accelerator: Accelerator) -> str:
    """Return how a recognised object runs on an accelerator."""
    return adopted.describe(accelerator.options) + described_devices(adopted, accelerator)


def described_devices(adopted: AdoptedEmbeddings, accelerator: Accelerator) -> str:
    """Return what follows on how an object runs where devices are listed, else nothing."""
    embedders = accelerator.embedders
    if not embedders.has_devices(adopted.devices):
        return ""
    if adopted.encoding is None:
        return f"; not on the listed devices: {HOSTED}"
    return f"; {embedders.describe(adopted.encoding, adopted.devices)}"


def describe_unused(accelerator: Accelerator) -> str:
    """Return what is to be said of an embeddings object that was not recognised."""
    return (
        f"; not on the listed devices: {NOT_KNOWN}" if accelerator.embedders.has_devices() else ""
    )


def warn_unused(accelerator: Accelerator, cls: type, adopted: AdoptedEmbeddings | None) -> None:
    """Say once for a class of embeddings that the devices listed are of no use to it."""
    if accelerator.embedders.has_devices() and (adopted is None or adopted.encoding is None):
        why = NOT_KNOWN if adopted is None else HOSTED
        accelerator.embedders.warn_unused(cls, why)
