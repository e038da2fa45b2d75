"""List all programs: every place of a LangGraph program where a leaf can stand."""

from __future__ import annotations

import places_functions
import places_runnables
import places_runtime
import places_shapes
import places_tools
from places_kit import Program

PROGRAMS: tuple[Program, ...] = (
    *places_functions.PROGRAMS,
    *places_runnables.PROGRAMS,
    *places_tools.PROGRAMS,
    *places_shapes.PROGRAMS,
    *places_runtime.PROGRAMS,
)
