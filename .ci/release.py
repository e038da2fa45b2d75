"""Fold the change fragments into the changelog, and build what is uploaded at a release.

    python .ci/release.py fold     # what `make changelog` runs
    python .ci/release.py build    # what `make release` runs
    python .ci/release.py build --with-broken-results    # publishes figures that break a rule

The version stands in ``pyproject.toml`` alone. Nothing is uploaded: ``build`` prints the commands.
"""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OVERRIDE = "--with-broken-results"
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
#: What holds only until the first release, in pages for users.
UNRELEASED = re.compile(r"<!-- unreleased -->.*?<!-- /unreleased --> *", re.DOTALL)
CHECKOUT = re.compile(r"(pip install )-e '\.\[")
#: A line that the owner of the repository fills in.
OWNER = re.compile(r"# OWNER: (.*)$", re.MULTILINE)


def version_of(root: Path) -> str:
    """Return the version that the project states."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]


def fragments_of(root: Path) -> list[Path]:
    """Return the change fragments that no release has, sorted."""
    return sorted(set((root / "changes").glob("*.md")) - {root / "changes" / "README.md"})


def fold(root: Path, day: str) -> str:
    """Move all fragments under the version in ``CHANGELOG.md``, and return that version.

    The pages for users then name the package instead of a checkout.

    Args:
        day: the date of the release, as YYYY-MM-DD.

    Raises:
        SystemExit: there are no fragments, or the changelog has the version.
    """
    version, fragments, page = version_of(root), fragments_of(root), root / "CHANGELOG.md"
    text = page.read_text()
    if f"\n## {version} " in text:
        sys.exit(f"CHANGELOG.md has {version} already: raise the version in pyproject.toml")
    if not fragments:
        sys.exit("changes/ has no fragments: there is nothing to fold")
    head, _, rest = text.partition("\n## [Unreleased]\n")
    collected, _, older = rest.partition("\n## ")
    section = f"\n## {version} ({day})\n" + "".join(_group(kind, fragments) for kind in KINDS)
    page.write_text(f"{head}\n## [Unreleased]\n{collected}{section}\n## {older}")
    for fragment in fragments:
        fragment.unlink()
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        path.write_text(CHECKOUT.sub(r"\1'rag-accel[", UNRELEASED.sub("", path.read_text())))
    return version


def _group(kind: str, fragments: list[Path]) -> str:
    """Return the fragments of a kind as a part of the changelog, whatever breaks first."""
    texts = [path.read_text().strip() for path in fragments if path.suffixes[0] == f".{kind}"]
    texts.sort(key=lambda text: not text.startswith("Breaking:"))
    items = [re.sub(r"\n(?=.)", "\n  ", f"- {text}") for text in texts if text[:2] != "- "]
    lists = [text for text in texts if text[:2] == "- "]
    lines = "".join(f"{item}\n" for item in items + lists).replace("](../", "](")
    return f"\n### {kind.capitalize()}\n\n{lines}" if lines else ""


def obstacles(root: Path) -> list[str]:
    """Return what stands in the way of a release, each with what to do."""
    version, tag = version_of(root), f"v{version_of(root)}"
    found: list[str] = []
    if changed := _git(root, "status", "--porcelain"):
        found.append(f"the tree differs from its commit; commit or remove:\n{changed}")
    if fragments := fragments_of(root):
        found.append(f"changes/ has {len(fragments)} fragments: run `make changelog` and commit")
    versions = re.findall(r"^## (\d\S*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if versions[:1] != [version]:
        found.append(f"CHANGELOG.md begins with {versions[:1]}, pyproject.toml has {version}")
    here = _git(root, "tag", "--points-at", "HEAD").split()
    if tag not in here and tag in _git(root, "tag").split():
        found.append(f"{tag} is the tag of another commit: raise the version in pyproject.toml")
    if others := [name for name in here if name.startswith("v") and name != tag]:
        found.append(f"this commit has the tag {others[0]}, pyproject.toml has {version}")
    return found


def broken_results(root: Path) -> list[str]:
    """Return the rules that the published results break, and how to release all the same."""
    line = [sys.executable, "-m", "bench.publish", "--check", "--root", str(root)]
    ended = subprocess.run(line, cwd=root, check=False, capture_output=True, text=True)
    told = f"measure again, or run `make release ARGS={OVERRIDE}`"
    return [f"{ended.stdout}{ended.stderr}{told}"] if ended.returncode else []


def build(root: Path, with_broken_results: bool = False) -> list[Path]:
    """Return the sdist and the wheel, built from it, in a new ``dist/``; the wheel is checked.

    Args:
        root: of the repository.
        with_broken_results: whether published results may break the rules of ``bench.publish``.

    Raises:
        SystemExit: something stands in the way; it is named.
    """
    if found := [*obstacles(root), *([] if with_broken_results else broken_results(root))]:
        sys.exit("\n".join(found))
    dist = root / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run(root, "-m", "build", "--no-isolation", "-o", str(dist), str(root))
    (wheel,) = dist.glob("*.whl")
    _run(root, "tests/smoke/check_wheel.py", str(wheel))
    return sorted(dist.iterdir())


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout


def _run(root: Path, *words: str) -> None:
    if subprocess.run([sys.executable, *words], cwd=root, check=False).returncode:
        sys.exit(f"failed: python {' '.join(words)}")


def main(command: str, *arguments: str) -> None:
    """Run a command and print what comes next."""
    if command == "fold":
        version = fold(ROOT, datetime.date.today().isoformat())
        print(f"CHANGELOG.md has {version}; read it, commit it, then `make release`")
        return
    files = " ".join(str(path.relative_to(ROOT)) for path in build(ROOT, OVERRIDE in arguments))
    tag = f"v{version_of(ROOT)}"
    for name in ("pyproject.toml", ".github/workflows/release.yml"):
        for line in OWNER.findall((ROOT / name).read_text()):
            print(f"to be filled in, {name}: {line}")
    print(f"built and checked: {files}\nto release, tag this commit; the workflow publishes it:")
    print(f"    git tag -a {tag} -m 'rag-accel {tag[1:]}'\n    git push origin {tag}")
    print(f"or upload by hand:\n    python -m twine upload {files}")


if __name__ == "__main__":
    if sys.argv[1:] not in (["fold"], ["build"], ["build", OVERRIDE]):
        sys.exit(__doc__)
    main(*sys.argv[1:])
