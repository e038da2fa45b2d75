"""The paths on which workers of a live cluster import what tests name."""

from __future__ import annotations

import os
from pathlib import Path

HELPERS = str(Path(__file__).parent)


def worker_path(*first: str) -> str:
    """Return the path on which workers find these helpers, and some folders before all others."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*first, HELPERS, *filter(None, given)])
