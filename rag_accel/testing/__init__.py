"""Fakes, a manual clock and contracts, for tests.

An engine of your own passes ``EngineContract``, an eviction policy ``EvictionPolicyContract``; code
that uses an accelerator is tested with ``FakeEngine``, ``FakeAsyncCall`` and ``FakeSyncCall``.
Nothing here needs a test framework.
"""

from rag_accel.testing.borrowed import BorrowedCall, FakeAsyncCall, FakeSyncCall
from rag_accel.testing.clock import ManualClock
from rag_accel.testing.compute import compute, vector_of
from rag_accel.testing.conformance import EngineContract
from rag_accel.testing.eviction import EvictionPolicyContract
from rag_accel.testing.fakes import FAKE_PROFILE, EngineCall, FakeEngine, no_wait
from rag_accel.testing.faults import Faults
from rag_accel.testing.runner import EngineRunner

__all__ = [
    "FAKE_PROFILE",
    "BorrowedCall",
    "EngineCall",
    "EngineContract",
    "EngineRunner",
    "EvictionPolicyContract",
    "FakeAsyncCall",
    "FakeEngine",
    "FakeSyncCall",
    "Faults",
    "ManualClock",
    "compute",
    "no_wait",
    "vector_of",
]
