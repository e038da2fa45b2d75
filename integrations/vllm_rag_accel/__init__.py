"""Retrieved texts in vLLM: a KV connector that loads their attention states, without a patch.

Start a server by ``python -m vllm_rag_accel.serve``, which takes the options of vLLM's own, or name
``vllm_rag_accel.connector`` in ``--kv-transfer-config`` and ``vllm_rag_accel.worker.Worker`` in
``--worker-cls``. Requests name their texts in ``kv_transfer_params``, see
``ReuseRequest``.
"""
