"""Reuse of retrieved texts: their encoding, and the splicing of their state into prompts.

Texts whose states are not stored are encoded behind the prompt's head, and behind each other as
they were retrieved together: a text that has seen such others keeps more of the answer (FusionRAG
section 3.1). What stands between and behind them in the prompt they never see. Stored state is
moved to the text's position in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engines.llm.local.batching.rows import LanePool
from rag_accel.engines.llm.local.batching.sequence import Probing, TokenSequence
from rag_accel.engines.llm.local.reuse.pending_loads import PendingLoads
from rag_accel.engines.llm.local.reuse.prompt_state import EncodedText, PromptChunks, Recompute
from rag_accel.engines.llm.local.reuse.returns import TextReturns
from rag_accel.kv.entry import ChunkLabel
from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.locate import parts_of
from rag_accel.kv.neighbours import MOST_BEFORE, MOST_TOGETHER
from rag_accel.kv.segments import Segment, SegmentedPrompt
from rag_accel.kv.selection import without
from rag_accel.kv.store import ChunkStore


class ChunkReuse:
    """The retrieved texts of all prompts of an engine. Used by its worker only.

    Args:
        pool: the lanes of sequences.
        store: keeps the state of texts.
        model: identifies the weights.
        recompute: the choice of recomputed tokens; None for none.
        behind_others: whether texts are encoded behind others, too.
        clock: measures how long a text is looked for.
    """

    def __init__(
        self,
        pool: LanePool,
        store: ChunkStore,
        model: str,
        recompute: Recompute | None = None,
        behind_others: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._store = store
        self._model = model
        self._recompute = recompute
        self._behind_others = behind_others
        self._pending_loads: PendingLoads[PromptChunks] = PendingLoads(
            store, clock or MonotonicClock()
        )
        self._encoded: dict[bytes, EncodedText] = {}
        self._by_sequence: dict[TokenSequence, list[EncodedText]] = {}
        self._prompts: dict[TokenSequence, PromptChunks] = {}
        self._num_encoded = 0
        self._returns = TextReturns()

    @property
    def held_bytes(self) -> int:
        return self._store.held_bytes

    def begin(
        self,
        sequence: TokenSequence,
        prompt: SegmentedPrompt,
        neighbours: Sequence[Segment] | None = None,
    ) -> Iterator[TokenSequence]:
        """Take a prompt; yield the sequences that may begin now: encodings, or itself.

        Args:
            sequence: its tokens.
            prompt: its segments.
            neighbours: texts that each of its texts is encoded behind, too, as they are behind the
                head alone (FusionRAG equation 10); empty for the head alone. By default texts are
                encoded as the engine's recipe says.
        """
        source = ChunkSource(self._model, sequence.namespace, prompt.head)
        if neighbours:
            source = source.behind(neighbour.ids for neighbour in neighbours)
        chunks = tuple((source.key(segment.ids), segment) for segment in prompt.chunks)
        found = PromptChunks(prompt, sequence, chunks, self._store.purges)
        if neighbours is None and self._behind_others:
            behind = source.behind_others()
            found.behind = {key: behind.key(segment.ids) for key, segment in chunks}
            found.digests = self._digests(sequence, prompt.chunks)
        self._take(found)
        for key in found.texts:
            self._look(found, key, [found.behind[key], key] if found.behind else [key])
        yield from self._go_on(found, neighbours or ())

    def pays(
        self,
        prompt: SegmentedPrompt,
        namespace: str,
        seconds: Callable[[int], float],
        *,
        is_asked: bool,
    ) -> bool:
        alone = ChunkSource(self._model, namespace, prompt.head)
        sources = [alone.behind_others(), alone] if self._behind_others else [alone]
        tokens: dict[bytes, int] = {}
        new: dict[bytes, int] = {}
        for ids in {chunk.ids for chunk in prompt.chunks}:
            names = [source.key(ids) for source in sources]
            tokens[names[-1]] = len(ids)
            if not any(name in self._encoded or self._store.may_have(name) for name in names):
                new[names[-1]] = len(ids)
        expected = self._returns.expected(new) if new else 0.0
        if is_asked:
            self._returns.note(tokens)
        texts = sum(len(chunk.ids) for chunk in prompt.chunks)
        whole = len(prompt.ids) - len(prompt.head)
        later = seconds(whole - texts)
        if self._recompute is not None:
            later += seconds(whole - texts + self._recompute.count(texts))
        gain = seconds(whole) - later
        # What new texts cost beyond this prompt's gain, their later prompts have to bring.
        return gain > 0 and (not new or seconds(sum(new.values())) <= gain * (1 + expected))

    @property
    def is_looking(self) -> bool:
        """Tell whether the kept state of any text is looked for."""
        return len(self._pending_loads) > 0

    def looked(self, timeout_s: float) -> Iterator[TokenSequence]:
        """Yield the sequences to compute after loads have ended: prompts, encodings.

        Args:
            timeout_s: how long to wait for one.
        """
        if timeout_s:
            self._store.wait(timeout_s)
        for lookup, state in self._pending_loads.ended():
            for found in lookup.readers:
                key = found.looked_for.pop(lookup.key)
                if state is not None and found.may_use(lookup.key, state.seen):
                    found.states[key] = state
                else:
                    if state is not None:
                        found.apart.add(key)
                    self._look(found, key, [] if lookup.key == key else [key])
                yield from self._go_on(found)

    def is_encoding(self, sequence: TokenSequence) -> bool:
        return sequence in self._by_sequence

    def encoded(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        """Keep the texts that a sequence has encoded; yield the prompts that may begin now."""
        assert sequence.lane is not None
        for text in self._forget_encoding(sequence):
            state = self._pool.read(sequence.lane.number, text.slots).having_seen(text.label.seen)
            self._store.put(text.name, state, text.label)
            for reader in text.readers:
                if text.key in reader.own:
                    reader.left_head = min(reader.left_head, sequence.from_prefix)
                reader.states[text.key] = state
                del reader.encoded[text.key]
                yield from self._ready(reader)

    def load(self, sequence: TokenSequence) -> None:
        """Put the state of its texts into the lane that a prompt was given."""
        found = self._prompts.get(sequence)
        if found is None:
            return
        assert sequence.lane is not None
        taken, texts = len(sequence.lane.ids), 0
        for key, segment in found.chunks:
            if segment.end <= taken:
                texts += len(segment.ids)
            else:
                self._pool.write(sequence.lane.number, segment.start, found.states[key])
        # What encoding its texts has computed of the head was computed for this prompt.
        behind = max(0, taken - texts - len(found.prompt.head))
        sequence.from_prefix = int(min(sequence.from_prefix - texts, found.left_head + behind))
        sequence.from_chunks = found.num_reused()
        sequence.preprocessed = found.num_preprocessed
        if self._recompute is not None and not self.is_encoding(sequence):
            last = len(sequence.prompt) - 1
            start = last if self._recompute.selector.asked == "last" else found.places[-1].stop
            sequence.probing = Probing(self._recompute.layer, start)

    def advanced(self, sequence: TokenSequence) -> None:
        """Choose the tokens that a prompt looks at most, once it is known; compute it again."""
        recompute, probing = self._recompute, sequence.probing
        if probing is None or sequence.pending:
            return
        assert recompute is not None
        found = self._prompts[sequence]
        places, scores = found.places, probing.scores(len(sequence.prompt))
        chosen = recompute.choose(scores, places)
        sequence.skipped = without(places, chosen)
        sequence.recomputed = len(chosen)
        sequence.from_chunks = found.num_reused(chosen)
        sequence.probing = None
        # What stands before the first text did not see any.
        sequence.go_on(places[0].start)

    def forget(self, sequence: TokenSequence) -> Iterator[TokenSequence]:
        found = self._prompts.pop(sequence, None)
        if found is None:
            return
        self._store.unpin(found.keys)
        for name in found.looked_for:
            self._pending_loads.forget(name, found)
        for text in found.encoded.values():
            del text.readers[found]
        for encoding in dict.fromkeys(text.sequence for text in found.encoded.values()):
            if not any(text.readers for text in self._by_sequence[encoding]):
                yield from self.forget(encoding)
                self._forget_encoding(encoding)
                yield encoding

    def readers(self, sequence: TokenSequence) -> list[TokenSequence]:
        found: dict[TokenSequence, None] = {}
        for text in self._by_sequence[sequence]:
            for reader in text.readers:
                waiting = reader.sequence
                ends = self.readers(waiting) if self.is_encoding(waiting) else [waiting]
                found.update(dict.fromkeys(ends))
        return list(found)

    @property
    def counts(self) -> Mapping[str, int]:
        # A text has two keys in the store, of which it may miss one.
        return {**self._store.counts, "chunk_misses": self._num_encoded}

    def forget_texts(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace and of their parts; from any thread."""
        self._store.forget((part for text in texts for part in parts_of(text)), namespace)

    def close(self) -> None:
        self._store.close()

    def _digests(self, sequence: TokenSequence, texts: Iterable[Segment]) -> frozenset[str]:
        # Texts of prompts that come as token ids may have no text.
        names = (segment.text or " ".join(map(str, segment.ids)) for segment in texts)
        return self._store.digests(names, sequence.namespace)

    def _take(self, found: PromptChunks) -> None:
        sequence = found.sequence
        self._prompts[sequence] = found
        self._store.pin(found.keys)
        # What stands before the first text is computed as in any prompt that begins alike.
        sequence.exact = len(found.prompt.before_texts)
        sequence.skipped = found.places

    def _look(self, found: PromptChunks, key: bytes, names: Sequence[bytes]) -> None:
        """Look for the state of a text under some keys of the store, the best first."""
        absent: list[bytes] = []
        for name in names:
            if self._waits(found, key, name):
                return
            state = self._store.find(name)
            if state is not None and found.may_use(name, state.seen):
                found.states[key] = state
                return
            if state is not None or name in self._encoded:
                found.apart.add(key)
            else:
                absent.append(name)
        for name in absent:  # the store is asked for what may take long once memory has none
            if self._pending_loads.begin(name, found):
                found.looked_for[name] = key
                return
        found.unknown[key] = None

    def _waits(self, found: PromptChunks, key: bytes, name: bytes) -> bool:
        """Tell whether a state that is encoded now is of use to a prompt, which waits for it."""
        text = self._encoded.get(name)
        if text is None or not found.may_use(name, text.label.seen):
            return False
        found.encoded[key] = text
        text.readers[found] = None
        return True

    def _go_on(
        self, found: PromptChunks, neighbours: Sequence[Segment] = ()
    ) -> Iterator[TokenSequence]:
        """Encode what is nowhere, once all is looked for; yield the sequences that may begin."""
        if found.unknown and not found.looked_for:
            yield from self._encode_unknown(found, neighbours)
        yield from self._ready(found)

    def _ready(self, found: PromptChunks) -> Iterator[TokenSequence]:
        """Yield a prompt if the states of all its texts are there."""
        if not found.is_ready:
            return
        if self._recompute is None and not self.is_encoding(found.sequence):
            # What stands behind texts is the same in all prompts that take the same states.
            found.sequence.exact = None
            found.sequence.marked = found.marked()
        yield found.sequence

    def _encode_unknown(
        self, found: PromptChunks, neighbours: Sequence[Segment]
    ) -> Iterator[TokenSequence]:
        together: list[bytes] = []
        for key, segment in found.texts.items():
            if key not in found.unknown:
                continue
            del found.unknown[key]
            # Another prompt may have begun with it while the store looked for others.
            if self._waits(found, key, found.behind.get(key, key)) or self._waits(found, key, key):
                continue
            if found.behind and key not in found.apart and found.behind[key] not in self._encoded:
                together.append(key)
                continue
            sequence = self._encode(found, [key], neighbours)
            if neighbours:
                yield from self.begin(sequence, _joined(found, neighbours, segment.ids), ())
            else:
                yield sequence
        for first in range(0, len(together), MOST_TOGETHER):
            yield self._encode_together(found, together[first : first + MOST_TOGETHER])

    def _encode_together(self, found: PromptChunks, keys: Sequence[bytes]) -> TokenSequence:
        """Return the sequence that encodes texts behind each other, and behind kept ones."""
        before: dict[bytes, Segment] = {}
        seen: frozenset[str] = frozenset()
        start = found.texts[keys[0]].start
        for key, segment in reversed(found.chunks):
            if segment.start < start and key in found.states and len(before) < MOST_BEFORE:
                more = found.states[key].seen | self._digests(found.sequence, [segment])
                if len(seen | more) <= MOST_TOGETHER:
                    before[key] = segment
                    seen |= more
        kept = dict(reversed(before.items()))
        sequence = self._encode(found, keys, tuple(kept.values()), seen)
        if kept:
            own = sequence.prompt[self._by_sequence[sequence][0].slots.start :]
            joined = _joined(found, tuple(kept.values()), own)
            chunks = tuple(zip(kept, joined.chunks, strict=True))
            states = {key: found.states[key] for key in kept}
            self._take(PromptChunks(joined, sequence, chunks, found.purges, states=states))
        return sequence

    def _encode(
        self,
        found: PromptChunks,
        keys: Sequence[bytes],
        before: Sequence[Segment],
        seen: frozenset[str] | None = None,
    ) -> TokenSequence:
        """Return the sequence that encodes texts of a prompt behind its head, and behind others.

        Args:
            found: the prompt.
            keys: of the texts, in their order.
            before: the texts between the head and them.
            seen: digests of these and of all that they have seen; of these alone by default.
        """
        reader, texts = found.sequence, [found.texts[key] for key in keys]
        ids = _joined(found, before, tuple(id for text in texts for id in text.ids)).ids
        sequence = TokenSequence(
            ids, 0, reader.request, reader.namespace, reader.arrived_at, reader.depth + 1
        )
        encoded = self._by_sequence[sequence] = list[EncodedText]()
        seen = self._digests(reader, before) if seen is None else seen
        start = len(ids) - sum(len(text.ids) for text in texts)
        for key, text in zip(keys, texts, strict=True):
            label = ChunkLabel(reader.namespace, text.text, seen, found.purges)
            name = found.behind[key] if seen and found.behind else key
            slots = range(start, start + len(text.ids))
            encoded.append(EncodedText(key, name, sequence, slots, label))
            self._encoded[name] = encoded[-1]
            self._waits(found, key, name)
            found.own.add(key)
            self._num_encoded += 1
            start, seen = slots.stop, seen | self._digests(reader, [text])
        return sequence

    def _forget_encoding(self, sequence: TokenSequence) -> list[EncodedText]:
        if (spliced := self._prompts.pop(sequence, None)) is not None:
            self._store.unpin(spliced.keys)
        texts = self._by_sequence.pop(sequence)
        for text in texts:
            del self._encoded[text.name]
        return texts


def _joined(
    found: PromptChunks, texts: Sequence[Segment], last: tuple[int, ...]
) -> SegmentedPrompt:
    """Return the segments of a prompt's head, texts and the tokens behind them."""
    head = found.prompt.head
    segments, at = [Segment("head", head, 0)] if head else [], len(head)
    for text in texts:
        segments.append(Segment("chunk", text.ids, at, text.document, text.text))
        at = segments[-1].end
    return SegmentedPrompt((*segments, Segment("glue", last, at)))
