"""Let the tests of this room share ``accel_harness``; leave no thread; debug all loops."""

from __future__ import annotations

import sys
from pathlib import Path

import ends_kit

sys.path.insert(0, str(Path(__file__).parent))

no_thread_is_left = ends_kit.no_thread_is_left
loops_in_debug_mode = ends_kit.loops_in_debug_mode
