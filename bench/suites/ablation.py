"""Measure what each pass and each mechanism for speed is worth: on against off.

An arm has everything on, the others lack one mechanism each, by an option or by a switch of the
bench (``bench/ablation/switches.py``); all else is equal. Arms take turns on the same work in one
process, and one clock, the caller's, times all. A ratio is the median over turns of time off / time
on, or of rate on / rate off: above 1 it pays. ``noise`` compares two equal arms. A full garbage
collection, 140 ms, is kept out of every run. Every answer must be that of the other arm.

- Embedding: MiniLM; callers embed a question a call, the next once they have a vector. ``mixed``:
  every second text is a passage of 60 words; ``repeated``: eight ask for the same. ``torch``:
  nothing is compiled, as without the extra ``fast``; a step that runs takes nobody in.
- ``fixed cost``: an engine whose step takes 10 ms (asleep) whatever it holds, as a GPU or a server;
  tasks compute 0.5 ms in Python before each call, as a framework does.
- ``a server``: an engine that answers each text 10 ms after it was handed over.
- Passes: arms have all of them on, those that are off by default, too.
- ``chain``: the demo's, with a reader in Python on the same cores.
- ``tree with upload`` and what follows: embedding, search and reranking computed here, the model
  emulated (``h100_like_1b``). ``line of stages`` writes three searches one after the other that do
  not need each other; ``66 passages`` are more than a step of the reranker takes.
- ``program``: LangGraph, engine and model sleep (``langgraph_depth``).
- ``bN ... nprobe``: N searches handed to the engine together, in an index of 200,000 vectors of
  256 numbers (full form 1,000,000), at the least nprobe with recall@10 of 0.99.
- ``no op``, ``sync retriever``, ``three retrievers``: leaves do nothing, or sleep 10 ms.

No guarantee (isolation, fairness, cancellation, exactness) has a row; nor has what cannot be told
apart from the work itself (batched dense searches of ``hybrid``, candidates gathered at once, each
distinct text of a reranking encoded once). What later work stands on stays, whatever it shows:

- time budgets of a step: for an engine that ends in time (so far none of ours says
  ``ends_in_time``);
- split prefill and handles: for a server that resumes prompts; so far only the emulated one does;
- speculation fields: for a scheduler that starts work whose need is not certain;
- replay (``explain``): for choosing passes by what a recording says they would save.

Ratios:
    compiled_model_1_thread: against ours with the compiled model off (torch): texts/s, 1 thread.
    own_reports_1_thread: against ours with dealing with a step's report in the engine's thread off:
        texts/s, 1 thread.
    batching_4_threads: against ours with batching off (max_batch=1): texts/s, 4 threads.
    one_in_line_4_threads: against ours with one more micro-batch in line off: texts/s, 4 threads.
    joining_waiting_steps_4_threads: against ours with interrupting a step that waits off: texts/s,
        4 threads.
    one_in_line_4_tasks: against ours with one more micro-batch in line off: texts/s, 4 tasks.
    joining_waiting_steps_4_tasks: against ours with interrupting a step that waits off: texts/s, 4
        tasks.
    noise_16_threads: against ours with nothing off: texts/s, 16 threads.
    batching_16_threads: against ours with batching off: texts/s, 16 threads.
    starting_together_16_threads: against ours with taking in what is in the mailbox before anything
        is started off: texts/s, 16 threads.
    compiled_model_16_threads: against ours with the compiled model off: texts/s, 16 threads.
    one_in_line_16_threads: against ours with one more micro-batch in line off: texts/s, 16 threads.
    joining_waiting_steps_16_threads: against ours with interrupting a step that waits off: texts/s,
        16 threads.
    own_reports_16_threads: against ours with dealing with a report where the step ended
        off: texts/s, 16 threads.
    batching_64_threads: against ours with batching off: texts/s, 64 threads.
    compiled_model_64_threads: against ours with the compiled model off: texts/s, 64 threads.
    one_in_line_64_threads: against ours with one more micro-batch in line off: texts/s, 64 threads.
    batching_64_tasks: against ours with batching off: texts/s, 64 tasks.
    starting_together_64_tasks: against ours with taking in what is in the mailbox before anything
        is started off: texts/s, 64 tasks.
    starting_together_16_tasks: against ours with taking in what is in the mailbox before anything
        is started off: texts/s, 16 tasks.
    sorting_by_length_64_threads_mixed: against ours with sorting by length off: texts/s.
    token_bounds_64_threads_mixed: against ours with bounds in tokens off (32 texts of similar
        length): texts/s.
    waiting_for_newcomers_2_threads_torch: against ours with waiting off (batch_wait_ms=0): texts/s,
        both on torch.
    starting_together_2_threads_torch: against ours with taking in what is in the mailbox before
        anything is started off: texts/s, both on torch.
    waiting_for_newcomers_16_threads_torch: against ours with waiting off (batch_wait_ms=0):
        texts/s, both on torch.
    starting_together_16_threads_torch: against ours with taking in what is in the mailbox before
        anything is started off: texts/s, both on torch.
    single_flight_64_threads_repeated: against ours with single_flight off: texts/s.
    split_nodes_queries_beside_an_upload: against ours with split_nodes off: median latency of a
        query while 128 passages are embedded.
    batching_16_threads_chain: against ours with batching off: answers/s, 16 threads.
    beginning_at_once_16_threads_chain: against ours with borrowed calls that begin without asking
        off: answers/s, 16 threads.
    quiet_messages_16_threads_chain: against ours with messages that wake nobody off: answers/s, 16
        threads.
    own_reports_16_threads_chain: against ours with dealing with a report where the step ended
        off: answers/s, 16 threads.
    batching_16_tasks_chain: against ours with batching off: answers/s, 16 tasks.
    beginning_at_once_16_tasks_chain: against ours with borrowed calls that begin without asking
        off: answers/s, 16 tasks.
    quiet_messages_16_tasks_chain: against ours with messages that wake nobody off: answers/s, 16
        tasks.
    own_reports_16_tasks_chain: against ours with dealing with a report where the step ended
        off: answers/s, 16 tasks.
    prune_dependencies_tree_with_upload: against ours with prune_dependencies off: latency of a
        request.
    rerank_by_source_tree_with_upload: against ours with rerank_by_source off: latency of a request.
    pipeline_decoding_tree_with_upload: against ours with pipeline_decoding off: latency of a
        request.
    join_prefill_tree_with_upload: against ours with join_prefill off: latency of a request.
    noise_tree_with_upload: against ours with nothing off: latency of a request.
    all_passes_tree_with_upload: against ours with passes=none (all off): latency of a request.
    prune_dependencies_line_of_stages: against ours with prune_dependencies off: latency of a
        request.
    split_prefill_long_prompt: against ours with split_prefill off: latency of a request whose
        prompt begins with 1500 tokens.
    decompose_stages_66_passages: against ours with decompose_stages off: latency of a request.
    decompose_stages_66_passages_2_at_once: against ours with decompose_stages off: time of two
        requests.
    rerank_by_source_6_at_once: against ours with rerank_by_source off: median latency, tree without
        upload, 6 requests at once.
    pipeline_decoding_6_at_once: against ours with pipeline_decoding off: median latency, tree
        without upload, 6 requests at once.
    join_prefill_6_at_once: against ours with join_prefill off: median latency, tree without upload,
        6 requests at once.
    depth_order_6_at_once: against ours with depth order (1 ms of waiting outweighs a level)
        off: median latency, tree without upload, 6 requests at once.
    joining_waiting_steps_6_at_once: against ours with interrupting a step that waits for the device
        off: median latency, tree without upload, 6 requests at once.
    use_skeleton_program_1_user: against ours with use_skeleton off: mean latency, 1 user.
    depth_order_program_1_user: against ours with depth order off: mean latency, 1 user.
    use_skeleton_program_4_users: against ours with use_skeleton off: mean latency, 4 users.
    depth_order_program_4_users: against ours with depth order off: mean latency, 4 users.
    clusters_product_b16_least_nprobe: against ours with a product with the centroids off: latency.
    searching_together_b16_least_nprobe: against ours with one call for all searches off: latency.
    clusters_product_b64_least_nprobe: against ours with a product with the centroids off: latency.
    searching_together_b64_least_nprobe: against ours with one call for all searches off: latency.
    sq8_vs_faiss_b16: against FAISS's own 8-bit lists with refine over the same codes: latency, 256
        nprobe.
    sq8_vs_faiss_b64: against FAISS's own 8-bit lists with refine over the same codes: latency, 256
        nprobe.
    batching_16_threads_searching: against ours with batching off: searches/s of 16 threads, least
        nprobe.
    batching_64_threads_searching: against ours with batching off: searches/s of 64 threads, least
        nprobe.
    waiting_for_newcomers_2_threads_fixed_cost: against ours with waiting off (batch_wait_ms=0):
        texts/s, 2 threads.
    waiting_for_newcomers_16_threads_fixed_cost: against ours with waiting off: texts/s, 16 threads.
    starting_together_16_threads_fixed_cost: against ours with taking in what is in the mailbox
        before anything is started off: texts/s, 16 threads.
    starting_together_16_tasks_fixed_cost: against ours with taking in what is in the mailbox before
        anything is started off: texts/s, 16 tasks.
    gathered_tasks_16_tasks_fixed_cost: against ours with bringing in the work of tasks together
        off: texts/s, 16 tasks.
    one_wake_a_loop_16_tasks_fixed_cost: against ours with one wake for all tasks of a loop off:
        texts/s, 16 tasks.
    starting_together_64_tasks_fixed_cost: against ours with taking in what is in the mailbox before
        anything is started off: texts/s, 64 tasks.
    gathered_tasks_64_tasks_fixed_cost: against ours with bringing in the work of tasks together
        off: texts/s, 64 tasks.
    one_wake_a_loop_64_tasks_fixed_cost: against ours with one wake for all tasks of a loop off:
        texts/s, 64 tasks.
    joining_waiting_steps_4_threads_a_server: against ours with work joining steps that wait off:
        texts/s, 4 threads.
    beginning_at_once_no_op_chain: against ours with borrowed calls that begin without asking off:
        latency of a call.
    quiet_messages_no_op_chain: against ours with messages that wake nobody off: latency of a call.
    beginning_at_once_no_op_chain_64_tasks: against ours with borrowed calls that begin without
        asking off: answers/s.
    quiet_messages_no_op_chain_64_tasks: against ours with messages that wake nobody off: answers/s.
    call_threads_sync_retriever_64_tasks: against ours with threads of our own off (the loop's
        executor): answers/s.
    composite_calls_three_retrievers_1_thread: against ours with an ensemble's calls side by side
        off: answers/s.
    composite_calls_three_retrievers_16_threads: against ours with an ensemble's calls side by side
        off: answers/s.
    kept_plans_10_no_op_stages: against ours with keeping what the passes made off: latency of a
        run.
    own_reports_10_no_op_stages: against ours with dealing with a report where the step ended off:
        latency of a run.
    kept_plans_10_no_op_stages_64_tasks: against ours with keeping what the passes made off:
        runs/s.
    own_reports_10_no_op_stages_64_tasks: against ours with dealing with a report where the step
        ended off: runs/s.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bench.ablation.groups import FULL, MEASURES, QUICK, Groups, Sizes
from bench.answers import too_many
from bench.emulated.table import H100_LIKE_1B, DeviceTable
from bench.garbage import little_garbage
from bench.results import SuiteResult, sizes_of
from rag_accel.engines.rerank.engine import PairScorer
from rag_accel.errors import ConfigError
from rag_accel.system.files import user_cache
from rag_accel_demo.material import Material, prepare


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes with ``only=GROUP`` taken into account.

    Raises:
        ConfigError: on another setting, or another group.
    """
    chosen = QUICK if quick else FULL
    if any(name != "only" or group not in MEASURES for name, group in settings.items()):
        valid = "only=" + "|".join(MEASURES)
        raise ConfigError("unknown setting", where="ablation", found=settings, valid=valid)
    return replace(chosen, groups=tuple(settings.values()))


def run(
    quick: bool,
    sizes: Sizes | None = None,
    material: Material | None = None,
    scorer: PairScorer | None = None,
    table: DeviceTable = H100_LIKE_1B,
    cache: Path | None = None,
) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for, over the demo's documents."""
    chosen = sizes or (QUICK if quick else FULL)
    kept = cache or user_cache()
    found = material or prepare(None, None, kept, progress=sys.stderr.isatty())
    groups = chosen.groups or tuple(MEASURES)
    bench = Groups(chosen, found, scorer, table, kept)
    with little_garbage():
        ablations = [one for group in groups for one in bench.measure(group)]
    rows = tuple(row for one in ablations for row in one.rows())
    slept = [group for group in groups if group in ("order", "interception")]
    return SuiteResult(
        *("ablation", rows, {one.key: one.gain for one in ablations}),
        emulated="requests" in groups,
        scripted=f"the engines of {' and '.join(slept)} sleep" if slept else False,
        sizes=sizes_of(chosen) | {"table": table.name},
        wrong=too_many(rows, "different_answers"),
    )
