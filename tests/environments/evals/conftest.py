"""Let the tests here import the scripted server, and libraries that report nothing of their use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"RAGAS_DO_NOT_TRACK": "true", "DEEPEVAL_TELEMETRY_OPT_OUT": "YES"}
TESTS = Path(__file__).parents[2]
sys.path += [str(TESTS), str(TESTS / "engines" / "llm")]
