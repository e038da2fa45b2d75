"""Let the tests of the demonstration use the tiny models of the language models' tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))
