"""Figures and verdicts stay those of earlier releases, for the same model and prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from check_kit import check_tiny
from int8_kit import give_folders

from rag_accel.kv.verdicts import DEPENDENCY, FUSED, INT8, VerdictKind

#: The results and files of checks that an earlier release has made, and their folder's secret.
EARLIER = Path(__file__).parent / "earlier"
RESULTS = json.loads((EARLIER / "results.json").read_text())
OWN = "43b19fb4016249eca982e81ab68a03e5588738ad384835783919b21957cc0fa1"
ROUNDED = "275882d189f2bbf137ab8f49e614597de647750e73d23a98a3b0649427af6519"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for weights and verdicts, in place of the room's cache folder."""
    give_folders(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache"


def near(value: Any) -> Any:
    """Return a value whose fractions are compared nearly."""
    if isinstance(value, dict):
        return {name: near(part) for name, part in value.items()}
    if isinstance(value, list):
        return [near(part) for part in value]
    return pytest.approx(value, rel=1e-3) if isinstance(value, float) else value


@pytest.mark.parametrize("variant", RESULTS)
def test_figures_are_those_of_an_earlier_release(variant: str, cache: Path) -> None:
    found = json.loads(json.dumps(check_tiny(variant, ratios=(0.3, 0.0, 0.15)).to_dict()))
    assert Path(found.pop("file")).parent == cache / "kv_checks"
    wanted = dict(RESULTS[variant])
    if variant == "int8":  # which integers a processor multiplies at once decides how it rounds
        for name, most in {"top1": 1.0, "top1_error": 0.1, "kl": 0.005, "kl_error": 0.001}.items():
            assert 0 < found.pop(name) <= most
            del wanted[name]
    assert found == near(wanted)


@pytest.mark.parametrize(
    ("kind", "identity", "top1", "kl"),
    [
        (FUSED, OWN, 0.96875, None),
        (DEPENDENCY, OWN, 0.4375, 0.2995454925713029),
        (INT8, ROUNDED, 0.96875, 0.0006976292676134518),
    ],
)
def test_verdicts_of_an_earlier_release_are_read(
    tmp_path: Path, kind: VerdictKind, identity: str, top1: float, kl: float | None
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    for file in EARLIER.glob("*.check"):
        shutil.copyfile(file, folder / file.name)
    (folder / ".secret").write_bytes(bytes.fromhex((EARLIER / "secret.hex").read_text()))
    (folder / ".secret").chmod(0o600)
    verdict = kind.read(folder, identity)
    assert verdict is not None
    assert (verdict.target, verdict.top1, verdict.kl, verdict.ratio) == (0.95, top1, kl, None)
    assert (verdict.prompts, verdict.tokens, verdict.versions["torch"]) == (8, 4, "2.13.0+cpu")
    written = json.loads(kind.write(tmp_path / "more", verdict).read_text())
    (earlier,) = (
        values
        for values in map(json.loads, (file.read_text() for file in EARLIER.glob("*.check")))
        if values["format"] == kind.format
    )
    assert {**written, "checksum": earlier["checksum"]} == earlier
