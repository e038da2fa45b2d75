"""Skip the tests of an environment of its own everywhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE not in item.path.parents:
            continue
        name = item.path.relative_to(_HERE).parts[0]
        if Path(sys.prefix).name != f".venv-{name}":
            reason = f"not in this environment: make test-in ENV={name} has it"
            item.add_marker(pytest.mark.skip(reason=reason))
