"""Checkpoints of a training, and the folder of a fine-tuning, which refuses another one there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rag_accel.errors import ConfigError
from rag_accel.system.files import replaced_file

_STATE, _DONE = "tuning.pt", "tuning.json"
_MEMBERS = {"recipe", "step", "losses", "match", "model", "optimizer"}
_HINT = "name a new folder"
#: Settings and results of a fine-tuning, as values of JSON.
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TuningState:
    """The progress of a fine-tuning.

    Args:
        step: how many steps are done.
        losses: of each of them.
        match: the exact match before the first one, right answers and all.
    """

    step: int
    losses: tuple[float, ...]
    match: tuple[int, int]


class StateFile:
    """The file of a training's last checkpoint: tensors, and values of JSON.

    Args:
        path: of the file; its folder exists.
        members: names that a checkpoint has at least.
        hint: what to do about a damaged one.
    """

    def __init__(self, path: Path, members: Collection[str], hint: str) -> None:
        self._path, self._members, self._hint = path, frozenset(members), hint

    def read(self) -> dict[str, Any] | None:
        """Return the last checkpoint, in memory of the CPU; None if there is none.

        Raises:
            ConfigError: the file is damaged, or holds something else.
        """
        if not self._path.exists():
            return None
        try:
            # Weights only: a pickle with anything else in it is refused, not run.
            found = torch.load(self._path, map_location="cpu", weights_only=True)
        except Exception as error:  # of a file that is damaged in any way
            raise damaged(self._path, error, self._hint) from error
        if not isinstance(found, dict) or not self._members.issubset(found):
            raise damaged(self._path, "no checkpoint", self._hint)
        return found

    def write(self, values: Values) -> None:
        """Write a checkpoint in the place of the last one, whole or not at all."""
        with replaced_file(self._path) as file:
            torch.save(dict(values), file)

    def remove(self) -> None:
        """Remove the checkpoint, if there is one."""
        self._path.unlink(missing_ok=True)


def damaged(file: Path, found: object, hint: str) -> ConfigError:
    """Return the error of a file that a training cannot be continued from."""
    return ConfigError(
        "a training cannot be continued",
        where=str(file),
        found=str(found),
        valid="the checkpoint or result of an earlier call",
        hint=hint,
    )


class TuningFolder:
    """The folder that a fine-tuned model is written to.

    Args:
        path: made if it is not there.
        recipe: all that the weights depend on.

    Raises:
        ConfigError: the folder has other files, or a fine-tuning of another recipe.
        OSError: the folder cannot be made.
    """

    def __init__(self, path: Path, recipe: Values) -> None:
        self.path = path
        self._recipe = dict(json.loads(json.dumps(recipe)))
        path.mkdir(parents=True, exist_ok=True)
        self._file = StateFile(path / _STATE, _MEMBERS, _HINT)
        self._state = self._file.read()
        self._done = self._read_done()
        found = self._done or self._state
        if found is not None:
            self._check_recipe(found.get("recipe"))
        elif any(not file.name.startswith(".") for file in path.iterdir()):
            raise ConfigError(
                "the folder has other files in it",
                where=str(path),
                valid="a new folder, or that of an unfinished fine-tuning",
            )

    def result(self) -> Values | None:
        """Return the result of a finished fine-tuning; None if there is none."""
        return None if self._done is None else self._done["result"]

    def restore(self, model: Any, optimizer: torch.optim.Optimizer) -> TuningState | None:
        """Load the last checkpoint into a model and its optimizer; None if there is none."""
        state, self._state = self._state, None
        if state is None:
            return None
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        right, total = state["match"]
        return TuningState(state["step"], tuple(state["losses"]), (right, total))

    def save(self, state: TuningState, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint in the place of the last one, whole or not at all."""
        self._file.write(
            {
                "recipe": self._recipe,
                "step": state.step,
                "losses": list(state.losses),
                "match": list(state.match),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
        )

    def finish(self, result: Values) -> None:
        """Write the result, and remove the checkpoint; the model was saved before."""
        with replaced_file(self.path / _DONE) as file:
            file.write(json.dumps({"recipe": self._recipe, "result": result}, indent=2).encode())
        self._file.remove()

    def _read_done(self) -> dict[str, Any] | None:
        file = self.path / _DONE
        if not file.exists():
            return None
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return {"recipe": dict(found["recipe"]), "result": dict(found["result"])}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise damaged(file, error, _HINT) from error

    def _check_recipe(self, found: Any) -> None:
        given = found if isinstance(found, dict) else {}
        for name in sorted({*self._recipe, *given}):
            if self._recipe.get(name) != given.get(name):
                raise ConfigError(
                    f"the fine-tuning in the folder has another value of {name}",
                    where=str(self.path),
                    found=repr(self._recipe.get(name)),
                    valid=repr(given.get(name)),
                    hint="name a new folder, or the settings that it was begun with",
                )
