"""Proofs that a runner gives a model's own logits, kept by the files that the model is loaded from.

A proof depends on more than the weights: on what computes them, and on the processor. All that is
its statement. The file of a proof is named by the statement's digest, keyed by the folder's secret,
and so stands for no other: none has to be believed for what is in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.verdicts import default_folder
from rag_accel.system.files import replaced_file

logger = logging.getLogger("rag_accel.llm")

#: Proofs of a user; the oldest go first.
MOST_PROOFS = 256
_SUFFIX = ".proof"


def checkpoint_digest(folder: Path) -> str:
    """Return a digest of a checkpoint's configuration and weights; about 1 s for a gigabyte.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.name.encode() + b"\0" + content)
    return digest.hexdigest()


def is_proved(statement: Mapping[str, Any]) -> bool:
    """Tell whether a proof of this statement, of JSON values, is kept."""
    with suppress(OSError, ConfigError):
        folder = ChunkFolder(default_folder(), create=False)
        file = folder.open(_path(folder, statement))
        if file is not None:
            file.close()
            return True
    return False


def keep_proof(statement: Mapping[str, Any]) -> None:
    """Keep a proof of this statement; if it cannot be written, the log says so."""
    try:
        folder = ChunkFolder(default_folder())
        with folder.locked(), replaced_file(_path(folder, statement)) as file:
            file.write(json.dumps(statement, indent=2).encode())
        kept = sorted(folder.path.glob(f"*{_SUFFIX}"), key=lambda path: path.lstat().st_mtime)
        for path in kept[:-MOST_PROOFS]:
            folder.remove(path)
    except (OSError, ConfigError) as error:
        logger.info("the proof of a runner is not kept: %s", error)


@cache
def _own_code() -> str:
    """Return a digest of the code of local models: an edited one is of the same version."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _path(folder: ChunkFolder, statement: Mapping[str, Any]) -> Path:
    said = json.dumps([_own_code(), statement], sort_keys=True).encode()
    return folder.path / f"{folder.name(b'proof ' + said)}{_SUFFIX}"
