"""``rag-accel doctor``: the installation, its local models, and embedders measured on it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_accel.cli.local_models import examine_local_models, format_local_models
from rag_accel.config import Options
from rag_accel.errors import ConfigError
from rag_accel.system.doctor import examine, format_examination
from rag_accel.system.processor import usable_cores

if TYPE_CHECKING:
    from rag_accel.accelerator.measured_members import MeasuredMembers

SLO_S = 1.0
"""The limit where ``embedding_slo_s`` is not set: the first of WindVE's evaluation."""

API_KEY = "OPENAI_API_KEY"


def add_doctor_command(commands: Any) -> None:
    """Add the command to a parser's commands."""
    doctor = commands.add_parser("doctor", help="show devices, versions, extras and options")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--measure",
        action="store_true",
        help="also time embedders on idle devices, and say what those after the first one save",
    )
    measuring = doctor.add_argument_group("with --measure, the most preferred embedder first")
    measuring.add_argument(
        "--embedder",
        action="append",
        metavar="DEVICE|process|URL=MODEL",
        help="cpu, cuda:0, ...; the model in a process of its own; or a server with "
        f"/v1/embeddings, whose key is read from {API_KEY}; by default every device here",
    )
    measuring.add_argument("--model", metavar="NAME", help="by default the packaged one")
    measuring.add_argument(
        "--slo", type=float, metavar="SECONDS", help=f"by default embedding_slo_s, else {SLO_S:g}"
    )
    measuring.add_argument(
        "--texts", type=Path, metavar="FILE", help="texts as long as real ones, one a line"
    )
    measuring.add_argument(
        "--demand",
        type=float,
        nargs=2,
        metavar=("TEXTS_PER_S", "PEAK"),
        help="texts a second in the mean and at once at the peak: how many such instances",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    found = {**examine(), "local_models": examine_local_models()}
    measured = _measured(arguments, found["devices"]) if arguments.measure else None
    if not arguments.json:
        print(format_examination(found))
        print(format_local_models(found["local_models"]))
        if measured is not None:
            print(measured)
        return 0
    if measured is not None:
        found["embedders"] = measured.to_dict()
    print(json.dumps(found, indent=2))
    return 0


def _measured(arguments: argparse.Namespace, devices: list[str]) -> MeasuredMembers:
    from rag_accel.accelerator.measured_members import DeviceDemand, measure_members

    options = Options.load()
    demand = None if arguments.demand is None else DeviceDemand(*arguments.demand)
    names = arguments.embedder or _names_of(devices)
    limits = (arguments.slo, options.embedding_slo_s)
    slo_s = next((limit for limit in limits if limit is not None), SLO_S)
    return measure_members(
        [_embedder(name, arguments.model) for name in names],
        options,
        options.threads or usable_cores(),
        slo_s=slo_s,
        texts=_read_texts(arguments.texts),
        demand=demand,
    )


def _names_of(devices: list[str]) -> list[str]:
    """Return the devices of this machine, accelerators before the CPU."""
    return sorted((device.partition(" ")[0] for device in devices), key=lambda name: name == "cpu")


def _embedder(name: str, model: str | None) -> Any:
    """Return an entry of ``Accelerator(embedder=[...])``.

    Raises:
        ConfigError: a server without its model, a model that cannot be loaded, or neither device,
            process nor server.
    """
    from rag_accel.accelerator.listed_members import is_device
    from rag_accel.engines import ProcessMember, RemoteMember, SentenceTransformerEngine
    from rag_accel.engines.embedding.models import load_named_model

    if name == "process":
        return ProcessMember(model)
    if is_device(name):
        if model is None:
            return name
        return SentenceTransformerEngine(load_named_model(model, "--model", name), device=name)
    if "://" not in name:
        raise ConfigError(
            "this is no embedder that can be measured",
            where="--embedder",
            found=name,
            valid="a device such as cpu or cuda:0, process, or a server as URL=MODEL",
        )
    url, _, remote = name.rpartition("=")
    if not url or not remote:
        raise ConfigError(
            "a server needs the name of its model",
            where="--embedder",
            found=name,
            valid="URL=MODEL, such as http://localhost:8080/v1=bge-m3",
        )
    return RemoteMember(url, remote, api_key=os.environ.get(API_KEY))


def _read_texts(path: Path | None) -> list[str]:
    """Return the lines of a file that are not empty.

    Raises:
        ConfigError: there is no such file, it is no text, or all of it is empty.
    """
    if path is None:
        return []
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("texts cannot be read", where=str(path), found=str(error)) from error
    if not texts:
        raise ConfigError("no text to measure with", where=str(path), valid="one or more lines")
    return texts
