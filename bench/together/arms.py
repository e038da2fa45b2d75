"""The mechanisms of unchanged programs, the options that switch them, and arms that have some."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from rag_accel.engines import ProcessMember


class Mechanism(StrEnum):
    """Something that makes the programs' requests faster."""

    BATCHING = "batching"
    COMPILED = "compiled embedding"
    LOCAL_ENGINE = "local engine"
    PASSES = "passes"
    SKELETON = "skeleton order"
    DEVICES = "device group"
    REUSE = "chunk reuse"


#: What an accelerator has that is to be without one of those that are on by default.
_OFF: dict[Mechanism, dict[str, Any]] = {
    Mechanism.BATCHING: {"max_batch": 1},
    Mechanism.COMPILED: {"embedding_runtime": "torch"},
    Mechanism.LOCAL_ENGINE: {"adopt_llm": "off"},
    Mechanism.PASSES: {"passes": "none"},
    Mechanism.SKELETON: {"use_skeleton": False},
}
#: Those that are on by default; none of them changes an answer.
EXACT = tuple(_OFF)
#: Those that are off by default, and are added to all others.
EXTRA = (Mechanism.DEVICES, Mechanism.REUSE)
ALL, NONE = frozenset(EXACT), frozenset[Mechanism]()
Arm = frozenset[Mechanism]


def options(arm: Arm) -> dict[str, Any]:
    """Return the options of an arm's accelerator; ``embedder`` is an argument beside them."""
    found = {name: value for one in EXACT if one not in arm for name, value in _OFF[one].items()}
    if Mechanism.REUSE in arm:
        found["kv_reuse"] = "full"
    return found


def embedders(arm: Arm) -> list[Any]:
    """Return the members of an arm's list of embedders: none without a device group."""
    return ["cpu", ProcessMember()] if Mechanism.DEVICES in arm else []


def alone(mechanism: Mechanism) -> Arm:
    """Return the arm of one mechanism. Chunks are reused by the local engine, so that has both."""
    needed = {Mechanism.LOCAL_ENGINE} if mechanism is Mechanism.REUSE else set[Mechanism]()
    return frozenset({mechanism, *needed})


def alone_name(mechanism: Mechanism) -> str:
    """Return the name of the arm that shows what a mechanism is worth by itself."""
    return f"{mechanism} alone"


def added_name(mechanism: Mechanism) -> str:
    """Return the name of the arm that shows what a mechanism is worth to all the others."""
    return f"all {'without' if mechanism in EXACT else 'and'} {mechanism}"


def arms() -> dict[str, Arm]:
    """Return every arm by name: all, none, each mechanism alone, left out of all, or added."""
    return {
        "none": NONE,
        **{alone_name(one): alone(one) for one in Mechanism},
        **{added_name(one): ALL - {one} for one in EXACT},
        "all": ALL,
        **{added_name(one): ALL | {one} for one in EXTRA},
    }


def share_name(mechanism: Mechanism) -> str:
    """Return the name of the ratio that is its share of the gain."""
    return f"share_{mechanism.replace(' ', '_')}"
