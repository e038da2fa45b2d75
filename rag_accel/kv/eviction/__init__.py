"""Policies of a store in memory: the order of eviction, and the admission of new states.

States may form trees: one that was encoded behind another has it as its parent, and a policy
evicts leaves alone. Policies know neither clock nor threads.
"""

from rag_accel.kv.eviction.admission import SecondHitAdmission
from rag_accel.kv.eviction.guarded import GuardedPolicy
from rag_accel.kv.eviction.lookahead import LookaheadPolicy
from rag_accel.kv.eviction.lru import LRUPolicy
from rag_accel.kv.eviction.names import check_policy, eviction_policy
from rag_accel.kv.eviction.priorities import PriorityPolicy
from rag_accel.kv.eviction.protocol import EvictionPolicy

__all__ = [
    "EvictionPolicy",
    "GuardedPolicy",
    "LRUPolicy",
    "LookaheadPolicy",
    "PriorityPolicy",
    "SecondHitAdmission",
    "check_policy",
    "eviction_policy",
]
