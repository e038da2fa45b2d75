"""What tests of members share is found beside them, and beside those of remote engines."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent

for folder in (_HERE, _HERE.parent / "llm"):
    sys.path.insert(0, str(folder))
