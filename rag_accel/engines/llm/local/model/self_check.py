"""The proof, at load, that a runner gives the logits of a model's own forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import Probe, Runner, SequenceRows, Subtrees
from rag_accel.engines.llm.local.model.families import (
    ModelShape,
    has_windows,
    narrow_windows,
    refusal,
    transformers_version,
)
from rag_accel.engines.llm.local.model.runner import packed_runner
from rag_accel.engines.llm.local.model.shared_weights import packed_copy, shared_copy
from rag_accel.kv.rotation import rotation_of

#: The most that logits may differ, as a share of the largest one, or of 1 if that is larger.
#: In bfloat16 a model's own logits change with the shape of a batch: each product is rounded to 8
#: bits, and sums of another order round to other numbers. Thirty layers of SmolLM2-135M: 0.02 to
#: 0.03 by packed rows, 0.02 by padding in a batch, 0.13 if scores were a tenth too large.
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-4}
#: The same for paged attention. Both sides round, each product and sum at another place: SmolLM2's
#: logits differ by 0.05 where each of both differs more than that from those in float32.
PAGED_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.1}
#: The same for paged attention with int8 weights, which are not equal but near.
INT8_BOUND = 0.25
#: Tokens of the prompts.
LENGTHS = (41, 23, 9)
#: How far the prompts are after each forward: chunks alone, with others, and single rows together.
ENDS = ((24, 0, 0), (40, 10, 8), (41, 22, 9), (41, 23, 9))
WINDOW = 8
SEED = 7
#: Bytes of a proof's pool, which takes what its short prompts need.
UNBOUNDED = 1 << 62
#: A prompt of reused states: its head, two texts with tokens between them, and a question; then the
#: tokens of texts that are computed again.
_HEAD, _FIRST, _SECOND, _BEHIND = range(8), range(8, 23), range(26, 54), range(54, 60)
_BETWEEN, _CHOSEN = range(23, 26), (9, 10, 11, 30, 31, 40)
#: Slots with room for all of it, in lanes of blocks.
PROOF_SLOTS = 256
#: A tree: the tokens of its head, then which tokens behind it are its root's and its leaves'.
_TREE_HEAD, _TREE_NODES = 8, (range(4), range(4, 9), range(9, 12), range(12, 18))


def check_equality(model: Any) -> None:
    """Check that a model's logits by packed rows are those of its own forward.

    Layers with a window are also checked with one that the prompts are longer than. The model is
    not changed: what runs are copies that share its weights.

    Raises:
        ConfigError: they differ by more than the bound for its dtype, or cannot be computed.
    """
    own, packed = shared_copy(model), packed_copy(model)
    _check(own, packed, "packed rows")
    if has_windows(model):
        narrow_windows(own, WINDOW)
        narrow_windows(packed, WINDOW)
        _check(own, packed, f"packed rows past a window of {WINDOW}")


def check_runner(
    model: Any,
    runner: Runner,
    probed: int | None = None,
    *,
    reused: bool = True,
    share: float | None = None,
) -> None:
    """Check that a runner gives the logits of a model's own forward, and packed rows' for the rest.

    The rest is what no own forward has: states that were moved, tokens of texts computed again, and
    positions far from their slots. The runner's pool is empty before and after it.

    Args:
        model: the model that it runs.
        runner: on paged attention.
        probed: the layer whose attention it can record; None for none.
        reused: whether the rest is checked, too.
        share: bounds the difference; by default that of the model's dtype.

    Raises:
        ConfigError: they differ by more than the bound, or cannot be computed.
    """
    prompts = _prompts(ModelShape.of(model.config))
    what, bound = "paged attention", PAGED_BOUNDS[model.dtype] if share is None else share
    _compare(
        *(lambda: own_logits(shared_copy(model), prompts), lambda: runner_logits(runner, prompts)),
        *(what, bound),
    )
    if not reused or runner.context < _BEHIND.stop or rotation_of(model) is None:
        return
    packed = packed_runner(packed_copy(model), runner.context, UNBOUNDED)
    _compare(
        *(lambda: _reused(packed, prompts, probed), lambda: _reused(runner, prompts, probed)),
        *(f"{what} over reused states", bound),
    )


def check_trees(model: Any, runner: Runner, share: float | None = None) -> None:
    """Check that each path of a tree gives the logits that it has alone in a model's own forward.

    In a context without room for the tree, which is shorter than any prompt, it is not.

    Args:
        model: the model.
        runner: of it, with room for the tree; its pool is empty before and after it.
        share: bounds the difference; by default that of the model's dtype.

    Raises:
        ConfigError: they differ by more than the bound, or cannot be computed.
    """
    size = _TREE_HEAD + sum(map(len, _TREE_NODES))
    if runner.context < size:
        return
    shape = ModelShape.of(model.config)
    ids = [(7 * at + 3) % shape.vocabulary for at in range(size)]
    nodes = [[ids[_TREE_HEAD + at] for at in node] for node in _TREE_NODES]
    paths = [[*ids[:_TREE_HEAD], *nodes[0], *leaf] for leaf in nodes[1:]]
    own = shared_copy(model)
    bound = PAGED_BOUNDS[model.dtype] if share is None else share
    _compare(
        *(lambda: torch.stack([own_logits(own, [path])[-1] for path in paths]),),
        *(lambda: _tree_logits(runner, ids), "rows of a tree", bound),
    )


def _tree_logits(runner: Runner, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of the last row of each leaf, whose tree is computed behind its head."""
    lane = _taken(runner.pool.take(len(ids)))
    head, slots = range(_TREE_HEAD), range(_TREE_HEAD, len(ids))
    root, *leaves = _TREE_NODES
    first = _TREE_HEAD + len(root)
    positions = [
        *range(_TREE_HEAD, first),
        *(first + at for leaf in leaves for at in range(len(leaf))),
    ]
    ends = [*[len(ids)] * len(root), *(_TREE_HEAD + leaf.stop for leaf in leaves for _ in leaf)]
    last = [leaf.stop - 1 for leaf in leaves]
    runner.run([SequenceRows(lane, ids[:_TREE_HEAD], head, head)])
    rows = SequenceRows(lane, ids[_TREE_HEAD:], slots, positions, last, Subtrees(ends))
    found = runner.run([rows])
    runner.pool.free(lane)
    return found


def _check(own: Any, packed: Any, what: str) -> None:
    prompts = _prompts(ModelShape.of(own.config))
    _compare(
        *(lambda: own_logits(own, prompts), lambda: packed_logits(packed, prompts)),
        *(what, BOUNDS[own.dtype]),
    )


def _compare(
    expect: Callable[[], torch.Tensor],
    find: Callable[[], torch.Tensor],
    what: str,
    share: float,
) -> None:
    try:
        expected, found = expect(), find()
    except Exception as error:
        raise _unproved(what, f"{type(error).__name__}: {error}") from error
    difference = float((expected - found).abs().max())
    bound = share * max(1.0, float(expected.abs().max()))
    # Not the other way round: a difference that is no number proves nothing.
    if not difference <= bound:
        raise _unproved(what, f"logits that differ by {difference:.2g} (at most {bound:.2g})")


def _unproved(what: str, found: str) -> Exception:
    return refusal(
        f"{what} cannot be proved equal to the model's own forward",
        found=found,
        valid="equal logits",
        hint=f"report the model's type with {transformers_version()}, or use the remote engine",
    )


def _prompts(shape: ModelShape) -> list[list[int]]:
    generator = torch.Generator().manual_seed(SEED)
    lengths = [min(length, shape.context) for length in LENGTHS]
    return [
        torch.randint(shape.vocabulary, (length,), generator=generator).tolist()
        for length in lengths
    ]


@torch.inference_mode()
def own_logits(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits ``[token, vocabulary]`` of all prompts, each in a forward of its own."""
    inputs = [torch.tensor([ids], device=model.device) for ids in prompts]
    return torch.cat([model(ids, use_cache=False).logits[0].float() for ids in inputs])


def packed_logits(model: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the same logits by a copy that attends by packed rows, computed in chunks."""
    return runner_logits(packed_runner(model, max(map(len, prompts)), UNBOUNDED), prompts)


def runner_logits(runner: Runner, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the logits ``[token, vocabulary]`` of all prompts, computed in chunks, together."""
    lanes = [runner.pool.take(len(ids)) for ids in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for before, after in pairwise([(0,) * len(prompts), *ENDS]):
        parts = {
            number: range(min(start, len(ids)), min(end, len(ids)))
            for number, (ids, start, end) in enumerate(zip(prompts, before, after, strict=True))
        }
        rows = {
            number: SequenceRows(
                _taken(lanes[number]),
                [prompts[number][at] for at in part],
                part,
                part,
                range(len(part)),
            )
            for number, part in parts.items()
            if part
        }
        sizes = [len(row) for row in rows.values()]
        logits = runner.run(list(rows.values())).split(sizes) if rows else ()
        for number, rows_logits in zip(rows, logits, strict=True):
            found[number].append(rows_logits)
    for lane in lanes:
        runner.pool.free(_taken(lane))
    return torch.cat([piece for pieces in found for piece in pieces])


def _taken(lane: int | None) -> int:
    if lane is None:
        raise ValueError("the pool has no room for the proof")
    return lane


def _reused(runner: Runner, prompts: Sequence[Sequence[int]], probed: int | None) -> torch.Tensor:
    """Return logits and recorded attention of prompts over states that were moved, in one row.

    Before them, the logits of a prompt whose positions are the last that the model was made for.
    """
    pool = runner.pool
    lanes = [_taken(pool.take(len(ids))) for ids in (*prompts, prompts[-1])]
    given = [
        SequenceRows(lane, ids, range(len(ids)), range(len(ids)))
        for lane, ids in zip(lanes, prompts, strict=False)
    ]
    last = prompts[-1]
    positions = range(runner.context - len(last), runner.context)
    end = SequenceRows(lanes[-1], last, range(len(last)), positions, range(len(last)))
    found: list[torch.Tensor] = [runner.run([*given, end])]
    target = _taken(pool.take(_BEHIND.stop))
    for slots, source, start in (_HEAD, 0, 0), (_FIRST, 1, 5), (_SECOND, 0, 8):
        pool.write(target, slots.start, pool.read(lanes[source], range(start, start + len(slots))))
    for places in (*_BETWEEN, *_BEHIND), sorted((*_CHOSEN, *_BETWEEN, *_BEHIND)):
        ids = [prompts[0][at % len(prompts[0])] for at in places]
        probe = None
        if probed is not None:
            probe = Probe(probed, range(len(places) - len(_BEHIND), len(places)))
        rows = SequenceRows(target, ids, places, places, (len(places) - 1,), probe=probe)
        found.append(runner.run([rows])[0])
        if probe is not None:
            found.append(probe.scores)
    for taken in (*lanes, target):
        pool.free(taken)
    return torch.cat([each.flatten() for each in found])
