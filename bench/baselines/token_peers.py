"""Engines of others that answer ids of prompts, each in a process and an environment of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.baselines.peer_process import ENVIRONMENTS, PeerProcess, interpreter

#: How OpenVINO calls torch's dtypes.
PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


@dataclass(frozen=True, slots=True)
class TokenPeer:
    """An engine, as ``make peers`` puts it.

    Args:
        environment: its interpreter.
        model: SmolLM2 in its form.
        script: answers there, see its docstring.
    """

    environment: Path
    model: Path
    script: Path

    def start(self, *arguments: str) -> TokenProcess:
        """Start its process.

        Raises:
            FileNotFoundError: the environment or the model was not made.
            EngineError: the process ended before it was ready.
        """
        if not self.model.exists():
            raise FileNotFoundError(f"no model {self.model}: make peers")
        given = (str(self.model), *arguments)
        return TokenProcess(self.environment, self.script, *given)


_HERE = Path(__file__).parent
#: By the precision of weights: as optimum-intel exports it, in the checkpoint's or in 8 bits.
GENAI = {
    weights: TokenPeer(
        interpreter("genai"), ENVIRONMENTS / "genai" / folder, _HERE / "genai_load.py"
    )
    for weights, folder in (("own", "smollm2"), ("int8", "smollm2-int8"))
}
LLAMA_CPP = TokenPeer(
    interpreter("llamacpp"),
    ENVIRONMENTS / "llamacpp" / "smollm2-q8_0.gguf",
    _HERE / "llamacpp_load.py",
)


@dataclass(frozen=True, slots=True)
class Answered:
    """The ids of each prompt's answer and the seconds until it ended, by the process's clock."""

    answers: tuple[tuple[int, ...], ...]
    latencies_s: tuple[float, ...]
    wall_s: float


class TokenProcess(PeerProcess):
    """Answers of an engine, all prompts of a call at once; the block's end ends the process."""

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int, eos: int) -> Answered:
        """Return the most probable tokens, at most so many each, up to ``eos``.

        Raises:
            EngineError: the process ended instead.
        """
        asked = {"prompts": [list(ids) for ids in prompts], "tokens": tokens, "eos": eos}
        found = self.ask(asked)
        return Answered(
            tuple(map(tuple, found["answers"])), tuple(found["latencies_s"]), found["wall_s"]
        )


def write_q8_0(path: Path = LLAMA_CPP.model) -> None:
    """Write SmolLM2's weights, as ``smollm2_folder`` has them, as a GGUF file in Q8_0.

    Vectors stay in float32, as llama.cpp's own converter leaves them.

    Raises:
        ConfigError: the packaged model is not installed.
        OSError: the file cannot be written.
    """
    from rag_accel.sample.smollm2 import packed_file

    gguf: Any = importlib.import_module("gguf")
    torch: Any = importlib.import_module("torch")
    reader = gguf.GGUFReader(packed_file())
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name not in ("general.architecture", "general.file_type") and not name.startswith(
            "GGUF."
        ):
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if kinds[1:] else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for tensor in reader.tensors:
        packed = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        values, kind = packed.bfloat16().float().numpy(), gguf.GGMLQuantizationType.Q8_0
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write_q8_0()
