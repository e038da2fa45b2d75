"""Keep what was measured of engines on disk, one small JSON file for each."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rag_accel.engines.measuring import Measurements
from rag_accel.errors import ConfigError
from rag_accel.files import replaced_file

FORMAT = 1

logger = logging.getLogger("rag_accel.profiles")


class ProfileStore:
    """Hold measurements by what was measured and where.

    Files say in plain words what they are of. One that is damaged, or of another format, counts as
    missing. Several processes may use one directory: the last to write wins.

    Args:
        directory: where the files are; made if it is missing.
        machine: all about this machine that decides how fast engines are.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(self, directory: Path, machine: str) -> None:
        self._directory = directory
        self._machine = machine
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "profiles cannot be kept here",
                where=f"profile_dir={str(directory)!r}",
                found=type(error).__name__,
                valid="a directory that can be made and written",
            ) from error

    def find(self, speed_key: str) -> Measurements | None:
        """Return what is known of engines with this key on this machine."""
        path = self._path(speed_key)
        try:
            return _read(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            logger.warning("the stored profile %s cannot be used: %s", path, error)
            return None

    def keep(self, speed_key: str, measured: Measurements) -> None:
        """Write what was measured; where that fails, warn and go on."""
        path = self._path(speed_key)
        said = {
            "format": FORMAT,
            "engine": speed_key,
            "machine": self._machine,
            "items_and_seconds": measured.points,
            "latency": asdict(measured.latency),
            "max_batch": measured.max_batch,
        }
        try:
            with replaced_file(path) as file:
                file.write(json.dumps(said, indent=1).encode())
        except OSError as error:
            logger.warning("the profile %s cannot be stored: %s", path, error)

    def _path(self, speed_key: str) -> Path:
        name = hashlib.sha256(f"{self._machine}\n{speed_key}".encode()).hexdigest()[:32]
        return self._directory / f"{name}.json"


def _read(said: Any) -> Measurements:
    if said["format"] != FORMAT:
        raise ValueError(f"format {said['format']!r}, not {FORMAT}")
    points = tuple((int(items), float(seconds)) for items, seconds in said["items_and_seconds"])
    sizes = [items for items, _ in points]
    if len(points) < 2 or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise ValueError(f"sizes {sizes}, not growing from 1")
    if not all(0.0 <= seconds < float("inf") for _, seconds in points):
        raise ValueError("a time is no time")
    measured = Measurements(points)
    _ = measured.latency, measured.max_batch  # numbers beyond all measure fail here, not in use
    return measured
