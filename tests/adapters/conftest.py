"""Servers for the tests of adapters."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))  # loopback servers
