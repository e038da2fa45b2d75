"""``rag-accel cache check``: the fidelity of fused prompts of a model to computed ones."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rag_accel.errors import ConfigError


def add_check_verb(verbs: Any) -> None:
    """Add the verb to those of the command."""
    check = verbs.add_parser(
        "check",
        help='measure what kv_reuse="fused" changes on a model, and propose its recompute_ratio',
        description="The exit status is 0 with a ratio to propose and 1 if fused does not pay.",
    )
    check.add_argument("model", metavar="MODEL", help="a folder, or a name on the hub")
    check.add_argument(
        "--prompts",
        metavar="FILE",
        type=Path,
        help='your own: a line each of {"question": "...", "documents": ["..."]}',
    )
    check.add_argument("--folder", metavar="FOLDER", help="the kv_folder to keep the verdict in")
    check.add_argument("--target", type=float, help="wanted share of equal tokens; 0.95")
    check.add_argument("--count", type=int, help="how many prompts are made without FILE; 30")
    check.add_argument("--limit-s", type=float, help="seconds, about; 1800")
    check.add_argument("--dtype", help="float32 or bfloat16; that of the checkpoint")
    check.add_argument("--template", metavar="FILE", type=Path, help="another chat template")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    # It needs torch, which other commands do without.
    from rag_accel.fidelity import check_reuse, load_prompts

    named = ("folder", "target", "count", "limit_s", "dtype")
    given = {name: getattr(arguments, name) for name in named}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if arguments.prompts is not None:
        options["prompts"] = load_prompts(arguments.prompts)
    if arguments.template is not None:
        options["template"] = _template(arguments.template)
    found = check_reuse(arguments.model, progress=_show, **options)
    print(json.dumps(found.to_dict(), indent=2) if arguments.json else found)
    return 0 if found.ratio is not None else 1


def _show(done: int, total: int) -> None:
    print(f"{done} of {total} prompts", file=sys.stderr)


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read a template", where=str(path), found=str(error)) from error
