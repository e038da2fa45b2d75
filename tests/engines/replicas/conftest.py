"""What these tests host is found in children too; some of it is that of other rooms' tests."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent

for folder in ("replicas", "ray", "llm", "devices"):
    sys.path.append(str(_HERE.parent / folder))
