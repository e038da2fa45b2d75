"""The gates by which calls of programs reach the endpoints that may refuse them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rag_accel.accelerator import RequestIdentity
from rag_accel.engines.http.endpoint_limit import Urgency
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.interception.twins import is_interactive


def gate_for(
    identity: RequestIdentity, obj: Any, *, is_batch: bool = False, is_cut: bool = True
) -> EndpointGate | None:
    """Return the gate for the calls of one run; None where they are not limited.

    Args:
        identity: the run.
        obj: whose calls they are.
        is_batch: whether nobody waits for them.
        is_cut: whether they end at the run's deadline; not those that other runs share.
    """
    if not identity.accelerator.options.endpoint_limits:
        return None
    urgency = partial(_urgency, identity, is_interactive(obj), is_batch)
    return EndpointGate(urgency, partial(_deadline, identity), is_cut=is_cut)


def _urgency(identity: RequestIdentity, is_interactive: bool, is_batch: bool) -> Urgency:
    if is_interactive or identity.deadline is not None:
        return Urgency.INTERACTIVE
    return Urgency.BATCH if is_batch else identity.urgency


def _deadline(identity: RequestIdentity) -> float | None:
    left_s = identity.accelerator.left_s(identity)
    return None if left_s is None else time.monotonic() + left_s
