"""Answer prompts by vLLM in its own environment, and say how long the first token took.

Run by the python of ``make test-vllm`` with the folder of a model to make, the folder of states and
the sizes of the model as JSON. Each line read has the ids of a prompt and the fields of its
request, or asks to forget the states in memory, or all blocks of the prefix cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BLOCK = 32


def main() -> None:
    """Answer until the input ends."""
    # What a library prints must not come between the lines that are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "OMP_NUM_THREADS": "1",
    }
    model, states, sizes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    if not (model / "config.json").exists():
        make_model(model, sizes)
    engine = Engine(model, states, sizes["context"])
    print(json.dumps({"ready": True, "version": engine.version}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.do(json.loads(line))), file=out, flush=True)


def make_model(folder: Path, sizes: dict[str, Any]) -> None:
    """Write a Llama of seeded random weights in bfloat16 and a tokenizer of single characters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        **{name: value for name, value in sizes.items() if name != "context"},
        max_position_embeddings=sizes["context"],
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    made: Any = LlamaForCausalLM(config).to(torch.bfloat16)
    made.save_pretrained(folder)
    words = {chr(code): code for code in range(256)}
    letters = Tokenizer(models.WordLevel(words, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token=chr(0))
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    fast.save_pretrained(folder)


class Engine:
    """vLLM in this process, with the connector.

    Args:
        model: the folder of the checkpoint.
        states: the folder of texts' states.
        context: most tokens of a sequence.
    """

    def __init__(self, model: Path, states: Path, context: int) -> None:
        import vllm
        from vllm.config import KVTransferConfig

        from vllm_rag_accel.serve import transfer_config
        from vllm_rag_accel.worker import PATH

        self.version = vllm.__version__
        self._llm = vllm.LLM(
            str(model),
            dtype="bfloat16",
            enforce_eager=True,
            block_size=BLOCK,
            max_model_len=context,
            max_num_batched_tokens=context,
            max_num_seqs=8,
            enable_prefix_caching=True,
            disable_log_stats=True,
            worker_cls=PATH,
            kv_transfer_config=KVTransferConfig(**transfer_config(str(states))),  # type: ignore[arg-type]
        )

    def do(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        if "ids" in asked:
            return self._answer(asked["ids"], asked.get("fields") or {})
        if asked.get("forget") == "memory":
            from vllm.distributed.kv_transfer import get_kv_transfer_group

            get_kv_transfer_group().forget_memory()  # type: ignore[attr-defined]
        else:
            self._llm.reset_prefix_cache()
        return {}

    def _answer(self, ids: list[int], fields: dict[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams, TokensPrompt

        params = fields.get("kv_transfer_params")
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            logprobs=0,
            extra_args={"kv_transfer_params": params} if params else None,
        )
        prompt = TokensPrompt(prompt_token_ids=ids)
        if fields.get("cache_salt"):
            prompt["cache_salt"] = fields["cache_salt"]
        began = time.perf_counter()
        (found,) = self._llm.generate([prompt], [sampling], use_tqdm=False)
        wall_s = time.perf_counter() - began
        (first,) = found.outputs[0].logprobs or ()
        token = found.outputs[0].token_ids[0]
        return {
            "seconds": wall_s,
            "token": token,
            "logprob": first[token].logprob,
            "cached": found.num_cached_tokens,
            "said": found.kv_transfer_params,
        }


if __name__ == "__main__":
    main()
