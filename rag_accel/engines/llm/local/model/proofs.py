"""Proofs that a runner gives a model's own logits, kept by the files that the model is loaded from.

A proof depends on more than the weights: on what computes them, and on the processor. All that is
its statement, and the key of its file, which so stands for no other.
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
from rag_accel.kv.cached_files import CachedFiles
from rag_accel.kv.verdicts import default_folder

logger = logging.getLogger("rag_accel.llm")

#: The proofs of a user: empty files, whose names say all.
PROOFS = CachedFiles(default_folder, ".proof", most=256)


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
        return PROOFS.read(_key(statement)) is not None
    return False


def keep_proof(statement: Mapping[str, Any]) -> None:
    """Keep a proof of this statement; if it cannot be written, the log says so."""
    try:
        PROOFS.write(_key(statement), b"")
    except (OSError, ConfigError) as error:
        logger.info("the proof of a runner is not kept: %s", error)


@cache
def _own_code() -> str:
    """Return a digest of the code of local models: an edited one is of the same version."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(statement: Mapping[str, Any]) -> str:
    return json.dumps([_own_code(), statement], sort_keys=True)
