"""The same events give the same commands in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

PLAYER = Path(__file__).with_name("core_player.py")


@cache
def commands(hash_seed: str, play_seed: int) -> str:
    """Return the commands of one seeded play in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(PLAYER), str(play_seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_commands_are_equal_whatever_the_hash_seed() -> None:
    first = commands("0", play_seed=5)
    assert first.count("\n") > 1000
    assert commands("4242", play_seed=5) == first


def test_other_events_give_other_commands() -> None:
    assert commands("0", play_seed=5) != commands("0", play_seed=6)
