"""The features of a processor are read as Linux tells them."""

from __future__ import annotations

from pathlib import Path

from rag_accel.system.processor import cpu_model, has_feature

INFO = "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\n"


def test_a_feature_is_a_whole_word_of_the_flags(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(INFO)
    assert has_feature("amx_bf16", info)
    assert not has_feature("amx", info)
    assert cpu_model(info) == "A Processor"


def test_where_nothing_is_told_there_is_no_feature(tmp_path: Path) -> None:
    assert not has_feature("avx2", tmp_path / "cpuinfo")
