"""States of texts for tests, of seeded numbers."""

from __future__ import annotations

import torch

from rag_accel.kv.entry import KeyValues


def chunk_state(
    seed: int = 0, tokens: int = 4, dtype: torch.dtype = torch.float32, position: int = 3
) -> KeyValues:
    """Return state of two layers, two heads and eight components: 256 bytes a float32 token."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = (torch.randn(2, 2, tokens, 8, generator=generator).to(dtype) for _ in range(2))
    return KeyValues(keys, values, position)


def same_state(one: object, other: KeyValues) -> bool:
    """Tell whether two states are equal in every number."""
    return (
        isinstance(one, KeyValues)
        and one.position == other.position
        and torch.equal(one.keys, other.keys)
        and torch.equal(one.values, other.values)
    )
