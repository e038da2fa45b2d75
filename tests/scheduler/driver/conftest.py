"""Let the tests of the driver share ``driver_harness``, and leave no thread behind."""

from __future__ import annotations

import sys
from pathlib import Path

import ends_kit

sys.path.insert(0, str(Path(__file__).parent))

no_thread_is_left = ends_kit.no_thread_is_left
