"""Reuse of relation paths: the nodes of a prompt's tree are computed once, behind its head.

A node sees the head and its own path alone, at a position by its depth: its state is what its path
alone has there, in every prompt with the same head (DepCache sections 3.1 and 4.2). Nodes that are
not stored are computed by sequences of their own, so that the scheduler batches them; a tree of
which nothing is stored and that is small is computed with the rest of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.batching.rows import LanePool
from rag_accel.engines.llm.local.batching.sequence import TokenSequence
from rag_accel.engines.llm.local.reuse.pending_loads import PendingLoads
from rag_accel.engines.llm.local.reuse.tree_units import (
    MOST_ROWS,
    PromptTree,
    Subforest,
    TreeEncoding,
    missing_subforests,
    node_spans,
)
from rag_accel.kv.dependency.tokens import TreePrompt, node_keys
from rag_accel.kv.entry import ChunkLabel, LaneState
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.store import ChunkStore


class TreeReuse:
    """The trees of all prompts of an engine. Used by its worker only.

    Args:
        pool: the lanes of sequences.
        store: keeps the state of nodes.
        model: identifies the weights.
        most_prompts: whose nodes are looked for and encoded at a time: they hold the states.
        clock: measures how long a node is looked for.
    """

    def __init__(
        self,
        pool: LanePool,
        store: ChunkStore,
        model: str,
        most_prompts: int,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._store = store
        self._model = model
        self._most_prompts = most_prompts
        self._loads: PendingLoads[PromptTree] = PendingLoads(store, clock or MonotonicClock())
        self._encodings: dict[bytes, TreeEncoding] = {}
        self._by_sequence: dict[TokenSequence, TreeEncoding] = {}
        self._prompts: dict[TokenSequence, PromptTree] = {}
        #: prompts whose nodes are not looked for yet
        self._waiting: dict[TokenSequence, PromptTree] = {}

    @property
    def held_bytes(self) -> int:
        return self._store.held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        return self._store.counts

    def begin(self, sequence: TokenSequence, prompt: TreePrompt) -> Iterator[TokenSequence]:
        source = ChunkSource(self._model, sequence.namespace, prompt.head)
        found = PromptTree(prompt, sequence, node_keys(prompt.tree, source))
        sequence.tree = found.place()
        sequence.marked = found.marked(self._store.purges)
        self._waiting[sequence] = found
        yield from self._begin_waiting()

    def pays(
        self,
        prompt: TreePrompt,
        namespace: str,
        seconds: Callable[[int], float],
        *,
        is_asked: bool,
    ) -> bool:
        # Its answer depends on whether a tree is computed, and may not on how fast that is.
        return True

    @property
    def is_looking(self) -> bool:
        """Tell whether the kept state of any node is looked for, or can be."""
        return len(self._loads) > 0 or (bool(self._waiting) and self._has_turn)

    @property
    def _has_turn(self) -> bool:
        return len(self._prompts) < self._most_prompts

    def looked(self, timeout_s: float) -> Iterator[TokenSequence]:
        """Yield the sequences to compute after loads have ended: prompts, encodings.

        Args:
            timeout_s: how long to wait for one.
        """
        begun = list(self._begin_waiting())
        yield from begun
        if timeout_s and not begun and len(self._loads):
            self._store.wait(timeout_s)
        readers: dict[PromptTree, None] = {}
        for lookup, state in self._loads.ended():
            for reader in lookup.readers:
                reader.loading.discard(lookup.key)
                readers[reader] = None
                if state is not None:
                    reader.take(lookup.key, state)
        for reader in readers:
            yield from self._go_on(reader)

    def _begin_waiting(self) -> Iterator[TokenSequence]:
        """Yield the sequences to compute for the next prompts: encodings, or a prompt itself."""
        while self._waiting and self._has_turn:
            sequence, found = next(iter(self._waiting.items()))
            del self._waiting[sequence]
            others = [*self._prompts.values(), *self._waiting.values()]
            self._store.began([found.keys, *(other.keys for other in others)])
            is_alone = not others
            self._prompts[sequence] = found
            self._store.pin(found.keys)
            self._find(found, is_alone)
            if found.is_inline or not found.missing:
                yield sequence
            else:
                yield from self._encode_missing(found)

    def _find(self, found: PromptTree, is_alone: bool) -> None:
        """Look for the states of a prompt's nodes."""
        # Children first: of those least lately used, none outlives its parent.
        for key in reversed(found.keys):
            if key in found.missing and (state := self._store.find(key)) is not None:
                found.take(key, state)
        for key in found.missing:
            if self._loads.begin(key, found):
                found.loading.add(key)
        is_new = len(found.missing) == len(found.nodes()) and not found.loading
        size = len(found.prompt.tree.ids)
        is_answered = found.sequence.max_new > 0
        found.is_inline = is_new and is_alone and is_answered and size <= MOST_ROWS
        if not found.is_inline:
            found.sequence.skipped = (found.prompt.slots,)

    def is_encoding(self, sequence: TokenSequence) -> bool:
        return sequence in self._by_sequence

    def encoded(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Keep the nodes that a sequence has encoded; yield what may begin now."""
        assert sequence.lane is not None
        encoding = self._forget_encoding(sequence)
        states = self._kept(sequence.lane.number, encoding)
        for reader in encoding.readers:
            if encoding.keys[0] in reader.own:
                reader.left_head = min(reader.left_head, sequence.from_prefix)
            for key, state in states.items():
                reader.take(key, state)
        for reader in encoding.readers:
            yield from self._go_on(reader)

    def load(self, sequence: TokenSequence) -> None:
        """Put the state of nodes into the lane that a sequence was given."""
        encoding = self._by_sequence.get(sequence)
        found = encoding.owner if encoding is not None else self._prompts.get(sequence)
        if found is None:
            return
        assert sequence.lane is not None
        if encoding is not None:
            # Behind the head, each in its place.
            self._place(found, sequence, encoding.part.past, in_place=True)
            return
        if len(sequence.lane.ids) >= found.prompt.slots.stop:
            _count_with_tree(found, sequence, len(sequence.lane.ids))
            return
        if not found.is_inline:
            self._place(found, sequence, found.nodes(), in_place=False)
            sequence.from_prefix = int(min(sequence.from_prefix, found.left_head))
        sequence.from_chunks = found.num_reused()

    def advanced(self, sequence: TokenSequence) -> None:
        """Keep the nodes of a tree that was computed with the rest of its prompt."""
        found = self._prompts.get(sequence)
        if found is None or not found.is_inline or not found.missing:
            return
        assert sequence.lane is not None
        if sequence.computed < found.prompt.slots.stop:
            return
        nodes = found.nodes()
        spans = node_spans(found.prompt, nodes, found.prompt.slots.start)
        labels = self._labels(found, nodes)
        for node, (slots, position), label in zip(nodes, spans, labels, strict=True):
            state = self._pool.read(sequence.lane.number, slots, position)
            self._store.put(found.keys[node], state, label, found.parent_key(node))
        found.missing.clear()

    def forget(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        self._waiting.pop(sequence, None)
        found = self._prompts.pop(sequence, None)
        if found is None:
            return
        self._store.unpin(found.keys)
        for key in found.loading:
            self._loads.forget(key, found)
        for encoding in list(self._by_sequence.values()):
            encoding.readers.pop(found, None)
            if not encoding.readers:
                yield self._forget_encoding(encoding.sequence).sequence

    def readers(self, sequence: TokenSequence) -> list[TokenSequence]:
        return [reader.sequence for reader in self._by_sequence[sequence].readers]

    def forget_texts(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of paths of a namespace, and all that have seen them; any thread."""
        self._store.forget(texts, namespace)

    def close(self) -> None:
        self._store.close()

    def _go_on(self, found: PromptTree) -> Iterator[TokenSequence]:
        """Yield a prompt that may begin now, or what is to be encoded next for it."""
        if not found.missing:
            yield found.sequence
        else:
            yield from self._encode_missing(found)

    def _encode_missing(self, found: PromptTree) -> Iterator[TokenSequence]:
        """Yield the sequences that encode what is missing, is not encoded yet, and can be."""
        if found.loading:
            return
        encodings = [self._encodings.get(key) for key in found.missing]
        for encoding in encodings:
            if encoding is not None:
                encoding.readers[found] = None
        if None not in encodings:
            return  # usual: this is asked after each of many small encodings
        awaited = [key in self._encodings for key in found.keys]
        for part in missing_subforests(found.prompt, found.cached(), awaited):
            yield self._encode(found, part).sequence

    def _encode(self, found: PromptTree, part: Subforest) -> TreeEncoding:
        reader = found.sequence
        sequence = TokenSequence(
            part.ids, 0, reader.request, reader.namespace, reader.arrived_at, reader.depth + 1
        )
        sequence.tree = part.place
        head = len(found.prompt.head)
        sequence.exact = head
        if part.place.slots.start > head:
            sequence.skipped = (range(head, part.place.slots.start),)
        encoding = TreeEncoding(found, part, sequence, self._labels(found, part.nodes))
        encoding.readers[found] = None
        self._by_sequence[sequence] = encoding
        for key in encoding.keys:
            self._encodings.setdefault(key, encoding)
            found.own.add(key)
        return encoding

    def _labels(self, found: PromptTree, nodes: Sequence[int]) -> list[ChunkLabel]:
        """Return the labels of nodes: their paths, and those that they have seen."""
        tree, purges, texts = found.prompt.tree, self._store.purges, found.texts
        namespace, digests = found.sequence.namespace, self._store.digests
        return [
            ChunkLabel(
                namespace,
                texts[node],
                digests((texts[above] for above in tree.ancestors(node)), namespace),
                purges,
            )
            for node in nodes
        ]

    def _kept(self, lane: int, encoding: TreeEncoding) -> dict[bytes, LaneState]:
        """Return the states of encoded nodes, and keep them."""
        states: dict[bytes, LaneState] = {}
        parts = zip(encoding.part.nodes, encoding.spans(), encoding.labels, strict=True)
        for node, (slots, position), label in parts:
            key = encoding.owner.keys[node]
            states[key] = self._pool.read(lane, slots, position)
            self._store.put(key, states[key], label, encoding.owner.parent_key(node))
        return states

    def _place(
        self, found: PromptTree, sequence: TokenSequence, nodes: Sequence[int], *, in_place: bool
    ) -> None:
        assert sequence.lane is not None
        prompt, tree = found.prompt, found.prompt.tree
        nodes = [node for node in nodes if tree.starts[node] < tree.starts[node + 1]]
        if not nodes:
            return
        head = len(prompt.head)
        if in_place:
            positions = [head + int(tree.depths[node]) for node in nodes]
        else:
            positions = [int(prompt.positions.positions[tree.starts[node]]) for node in nodes]
        states = [found.states[found.keys[node]] for node in nodes]
        self._pool.place(sequence.lane.number, head, states, positions)

    def _forget_encoding(self, sequence: TokenSequence) -> TreeEncoding:
        encoding = self._by_sequence.pop(sequence)
        for key in encoding.keys:
            if self._encodings.get(key) is encoding:
                del self._encodings[key]
        return encoding


def _count_with_tree(found: PromptTree, sequence: TokenSequence, taken: int) -> None:
    """Count what a prompt has taken over from one with the same tree: the tree counts as reused."""
    slots = found.prompt.slots
    behind = taken - slots.stop
    head = sequence.from_prefix - len(slots) - behind
    sequence.from_prefix = int(min(head, found.left_head)) + behind
    sequence.from_chunks = len(slots) if found.is_inline else found.num_reused()
