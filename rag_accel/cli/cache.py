"""``rag-accel cache``: kept states of texts, and models traced for OpenVINO; listed and purged.

States are filled, too; what they and int8 weights change is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_accel.cli.check import add_check_verb
from rag_accel.cli.fill import add_fill_verb
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.kv.files import ChunkHeader
    from rag_accel.kv.folder import ChunkFolder

_DAY_S = 86400


def add_cache_command(commands: Any) -> None:
    """Add the command with its own to a parser's commands."""
    cache = commands.add_parser("cache", help="what is kept of texts and models, and what it costs")
    verbs = cache.add_subparsers(dest="verb", required=True, metavar="list|purge|fill|check")
    listing = verbs.add_parser("list", help="show the files, the least lately used first")
    listing.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        help="a kv_folder; without it traced models",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object a line")
    listing.set_defaults(run=_list)
    purge = verbs.add_parser("purge", help="remove files, and what running programs have of them")
    purge.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        help="a kv_folder; without it traced models",
    )
    which = purge.add_mutually_exclusive_group(required=True)
    which.add_argument("--text", help="of this text, as it stands in prompts; - reads it")
    which.add_argument("--namespace", metavar="NAME", help="of this tenant")
    which.add_argument("--all", action="store_true", help="of every text, or every traced model")
    which.add_argument("--traces", action="store_true", help="models traced for OpenVINO")
    purge.set_defaults(run=_purge)
    add_fill_verb(verbs)
    add_check_verb(verbs)


def _opened(path: Path) -> ChunkFolder:
    # It needs torch, which other commands do without.
    from rag_accel.kv.folder import ChunkFolder

    return ChunkFolder(path.expanduser(), create=False)


def _list(arguments: argparse.Namespace) -> int:
    if arguments.folder is None:
        return _list_traces(as_json=arguments.json)
    total = count = 0
    for file, header in _opened(arguments.folder).headers():
        shown: dict[str, Any] = {
            "name": file.path.stem,
            "bytes": file.size,
            "unused_s": round(max(0.0, time.time() - file.used)),
            **_described(header),
        }
        print(json.dumps(shown) if arguments.json else _line(shown))
        total, count = total + file.size, count + 1
    if not arguments.json:
        print(f"{count} texts, {total / 2**20:.1f} MiB")
    return 0


def _described(header: ChunkHeader | None) -> dict[str, Any]:
    if header is None:
        return {"model": None}
    return {
        "model": header.tag.model,
        "namespace": header.tag.namespace,
        "dtype": str(header.dtype).removeprefix("torch."),
        "tokens": header.shape[2],
    }


def _line(shown: dict[str, Any]) -> str:
    what = "unreadable"
    if shown["model"] is not None:
        where = f"model {shown['model'][:12]}, namespace {shown['namespace'][:12]}"
        what = f"{shown['tokens']} tokens, {shown['dtype']}, {where}"
    size = f"{shown['bytes'] / 2**20:.1f} MiB"
    return f"{shown['name'][:12]}  {size}, {what}, unused for {shown['unused_s']} s"


def _purge(arguments: argparse.Namespace) -> int:
    names_texts = arguments.text is not None or arguments.namespace is not None
    if arguments.folder is None and names_texts:
        raise _unfit("no FOLDER", "FOLDER with --text or --namespace")
    if arguments.folder is None:
        return _purge_traces()
    if arguments.traces:
        raise _unfit("FOLDER with --traces", "--traces alone")
    folder = _opened(arguments.folder)
    is_meant = _meant(folder, arguments)
    print(f"{folder.purge(is_meant)} files removed")
    return 0


def _unfit(found: str, valid: str) -> ConfigError:
    what = "the files to remove are not named"
    return ConfigError(what, where="rag-accel cache purge", found=found, valid=valid)


def _meant(folder: ChunkFolder, arguments: argparse.Namespace) -> Callable[[ChunkHeader], bool]:
    if arguments.text is not None:
        text = sys.stdin.read() if arguments.text == "-" else arguments.text
        digest = folder.text_digest(text)
        return lambda header: digest in header.tag.texts
    if arguments.namespace is not None:
        digest = folder.namespace_digest(arguments.namespace)
        return lambda header: header.tag.namespace == digest
    return lambda header: True


def _list_traces(*, as_json: bool) -> int:
    from rag_accel.engines.llm.local.paged.topology import kept_traces

    found = kept_traces()
    for kept in reversed(found):
        name, size, unused_s = kept.path.stem, kept.size_bytes, round(kept.unused_s)
        if as_json:
            shown = {"kind": "trace", "name": name, "refused": kept.refused}
            print(json.dumps({**shown, "bytes": size, "unused_s": unused_s}))
            continue
        what = f"refused: {kept.refused}" if kept.refused else f"{size / 2**20:.1f} MiB, trace"
        print(f"{name[:12]}  {what}, unused for {unused_s / _DAY_S:.1f} days")
    if not as_json:
        size = sum(kept.size_bytes for kept in found)
        print(f"{len(found)} traced models, {size / 2**20:.1f} MiB")
    return 0


def _purge_traces() -> int:
    from rag_accel.engines.llm.local.paged.topology import remove_traces

    print(f"{remove_traces()} traced models removed")
    return 0
