"""COMPATIBILITY names each leaf method, and upstream has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_rag_accel.entries import ENTRIES, OPTIONAL
from llama_index_rag_accel.leaf_table import LLAMA_INDEX

TEXT = (Path(__file__).parents[3] / "COMPATIBILITY.md").read_text()
ROWS = [(base, leaf) for base, leaves in LLAMA_INDEX.leaves.items() for leaf in leaves]
#: A composite's method is one of few classes, not of their base.
LEAVES = [(base, leaf.name) for base, leaf in ROWS if leaf.flavour != "composite"]

ENTERED = [(base, one) for base, names in ENTRIES.items() for one in names if one not in OPTIONAL]


@pytest.mark.parametrize("name", sorted({leaf.name for _, leaf in ROWS}))
def test_a_leaf_is_named_in_the_table(name: str) -> None:
    section = TEXT.partition("## LlamaIndex")[2].partition("## ")[0]
    assert f"`{name}`" in section


@pytest.mark.parametrize(("base", "name"), LEAVES + ENTERED)
def test_upstream_has_the_method(base: type, name: str) -> None:
    assert callable(getattr(base, name))
