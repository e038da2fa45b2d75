"""The mechanisms of the ``RAGraph``, and the arms that have some of them."""

from __future__ import annotations

from enum import StrEnum


class Mechanism(StrEnum):
    """Something that makes the graph's requests faster."""

    BATCHING = "batching"
    COMPILED = "compiled embedding"
    DEVICES = "device group"
    GRAPH_STAGE = "graph stage"
    LOCAL_ENGINE = "local engine"
    REUSE = "chunk reuse"
    PASSES = "passes"


#: Those that change no answer; the reuse of chunks is approximate.
EXACT = tuple(one for one in Mechanism if one is not Mechanism.REUSE)
ALL, NONE = frozenset(EXACT), frozenset[Mechanism]()
Arm = frozenset[Mechanism]


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
    """Return every arm by name: all, none, each mechanism alone, all without it, and with reuse."""
    return {
        "none": NONE,
        **{alone_name(one): alone(one) for one in Mechanism},
        **{added_name(one): ALL - {one} for one in EXACT},
        "all": ALL,
        added_name(Mechanism.REUSE): ALL | {Mechanism.REUSE},
    }


def share_name(mechanism: Mechanism) -> str:
    """Return the name of the ratio that is its share of the gain."""
    return f"share_{mechanism.replace(' ', '_')}"
