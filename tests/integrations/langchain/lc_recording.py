"""Show values in a form in which two runs can be compared."""

from __future__ import annotations

import re
from typing import Any

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def plain(value: Any) -> str:
    """Return a value as text in which what differs from run to run is equal.

    That is ids, and the order of keys that steps running side by side filled in.
    """
    if isinstance(value, dict):
        parts = sorted(f"{key!r}: {plain(item)}" for key, item in value.items())
        return "{" + ", ".join(parts) + "}"
    return re.sub(r"0x[0-9a-f]+", "0x", _UUID.sub("<id>", repr(value)))
