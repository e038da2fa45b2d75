"""What acceleration adds to a process is what the README says of its threads."""

from __future__ import annotations

import pytest

from bench.footprint import measure


def test_an_import_starts_no_thread() -> None:
    assert measure("imported")["threads"] == []


def test_an_accelerator_without_engines_of_ours_has_one_thread() -> None:
    found = measure("accelerator")
    assert found["threads"] == ["rag-accel-driver"]
    assert found["num_kernel_threads"] >= 2
    assert found["rss_mib"] > measure("nothing")["rss_mib"]


@pytest.mark.slow
def test_an_accelerated_chain_has_one_more_thread_for_each_engine_of_ours() -> None:
    threads = measure("accelerated_on_torch")["threads"]
    ours = [name for name in threads if name.startswith("rag-accel-")]
    assert ours == ["rag-accel-driver", "rag-accel-embedding#1"]
