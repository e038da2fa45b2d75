"""Recognised embeddings objects on the devices listed, and the log line about the others."""

from __future__ import annotations

from typing import Any

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.placed_models import PlacedModel
from rag_accel.recognition.embeddings import AdoptedEmbeddings

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
