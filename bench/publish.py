"""Check results, copy them into ``bench/results`` and write the documents.

``python -m bench.publish FILE|FOLDER...`` lists what breaks a rule, each with what to do. Nothing
is copied then, unless ``--skip-refused`` is given. ``python -m bench.publish --check`` says which
rules the published results break. The rules:

- at the start nothing else ran: a load average of at most 1.0; and what ran were no tiny shapes;
- the measured code is a commit that git knows, and no file differed from it;
- no file of the product has changed since;
- a score against gold answers rests on at least 12 of them in each process;
- a headline (``bench.claims``) has the range of several processes, or an interval within one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from bench.claims import CLAIMS
from bench.environment import MAX_LOAD
from bench.measure import MIN_FOR_INTERVAL
from bench.results import SuiteResult, load, save
from bench.suites import ratio_definitions
from bench.table import ROOT, write_documents
from rag_accel.errors import RagAccelError

MIN_GOLD = 12
#: Metrics that compare with gold answers, with what full attention makes of a prompt, or with what
#: a search in full finds: shares and means over questions, which a few of them do not settle.
GOLD_SCORES = frozenset(
    {
        *("exact_match", "top1", "recovered_of_kl", "stop_equal"),
        *("kl_first", "kl_mean", "kl_first_nats", "kl_nats"),
    }
)
#: What a user installs and runs.
PRODUCT = ("rag_accel", "adapters", "integrations", "demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Publish what is given, or check it; return 1 if a rule is broken, 2 on an error."""
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("given", type=Path, nargs="*", metavar="FILE|FOLDER")
    parser.add_argument("--skip-refused", action="store_true", help="copy the others")
    parser.add_argument("--check", action="store_true", help="check the published results")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    arguments = parser.parse_args(argv)
    if arguments.check == bool(arguments.given):
        parser.error("name files or folders of results, or give --check alone")
    published = arguments.root / "bench" / "results"
    found, refused = _judged([published] if arguments.check else arguments.given, arguments.root)
    print("\n".join([*refused, f"{len(found)} results keep every rule"]))
    if arguments.check or not found or (refused and not arguments.skip_refused):
        return int(bool(refused) or not found)
    try:
        for result in found:
            save(published / f"{result.suite}.json", [result])
        write_documents(arguments.root)
    except (RagAccelError, ImportError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def _judged(given: Sequence[Path], root: Path) -> tuple[list[SuiteResult], list[str]]:
    """Return the results that keep every rule, and what the others and other files break."""
    results, refused = list[SuiteResult](), list[str]()
    for path in given:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        refused += [] if files else [f"{path}: no result files: name another folder"]
        for file in files:
            try:
                results += load(file)
            except RagAccelError as error:
                refused.append(f"{file}: {error}")
    twice = Counter(result.suite for result in results)
    found = list[SuiteResult]()
    for result in results:
        broken = [f"{result.suite}: {one}" for one in refusals(result, root)]
        if twice[result.suite] > 1:
            broken.append(f"{result.suite}: given more than once: name the file that is to stay")
        refused += broken
        found += [] if broken else [result]
    return found, refused


def refusals(result: SuiteResult, root: Path = ROOT) -> list[str]:
    """Return the rules that a result of a repository breaks, each with what to do."""
    if not ratio_definitions(result.suite):
        return ["no suite of that name: publish results of suites that there are"]
    return [*_load(result), *_code(result, root), *_gold(result), *_headlines(result)]


def _load(result: SuiteResult) -> Iterator[str]:
    if result.environment.get("tiny"):
        yield "tiny shapes on a processor only try the command: measure a card"
    at_start = (result.environment.get("load_average") or [None])[0]
    if not isinstance(at_start, int | float) or at_start > MAX_LOAD:
        yield (
            f"load average {at_start} at the start, at most {MAX_LOAD}: "
            "measure again while nothing else runs, --when-quiet waits for that"
        )


def _code(result: SuiteResult, root: Path) -> Iterator[str]:
    commit, is_dirty = result.environment.get("commit"), result.environment.get("is_dirty")
    if is_dirty is not False:
        yield "files differed from the commit: commit first, then measure again"
    changed = changed_since(root, str(commit))
    if changed is None:
        yield f"git does not know the commit {commit}: measure a commit of this repository"
    elif changed:
        yield (
            f"{len(changed)} files of the product have changed since {str(commit)[:10]}, such as "
            f"{changed[0]}: measure again"
        )


@cache
def changed_since(root: Path, commit: str) -> tuple[str, ...] | None:
    """Return the product's Python files that HEAD has otherwise; None without such a commit."""
    if not re.fullmatch("[0-9a-f]{7,40}", commit):
        return None
    globs = [f":(glob){package}/**/*.py" for package in PRODUCT]
    line = ["git", "diff", "--name-only", commit, "HEAD", "--", *globs]
    ended = subprocess.run(line, cwd=root, check=False, capture_output=True, text=True)
    return tuple(ended.stdout.splitlines()) if ended.returncode == 0 else None


def _gold(result: SuiteResult) -> Iterator[str]:
    # Processes ask the same questions again: these are no further answers.
    rows = ((row.metric, row.n // result.num_processes) for row in result.rows)
    few = {(metric, n) for metric, n in rows if metric in GOLD_SCORES and n < MIN_GOLD}
    if few:
        told = ", ".join(f"{metric} of {n}" for metric, n in sorted(few))
        yield (
            f"a score against gold answers needs {MIN_GOLD} of them ({told}): "
            "measure more of them, or leave the row out"
        )


def _headlines(result: SuiteResult) -> Iterator[str]:
    for claim in CLAIMS:
        if claim.suite != result.suite or claim.ratio not in result.ratios:
            continue
        if not (result.range_of(claim.ratio) or result.interval_of(claim.ratio)):
            yield (
                f"the headline {claim.ratio} has no interval: measure it with --processes 5, or "
                f"with {MIN_FOR_INTERVAL} turns or more in a process"
            )


if __name__ == "__main__":
    sys.exit(main())
