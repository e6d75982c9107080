"""What a client gets: deltas while its request runs, and its result."""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast, overload

from holdfast.core.logprobs import NO_TEXTS, Logprob, TokenTexts, with_texts
from holdfast.core.step_plan import TokenLogprob
from holdfast.core.stop_rules import FinishReason
from holdfast.errors import make_error

T = TypeVar("T")

Determinism = Literal["certified", "verified", "none"]
_WEAKEST_FIRST: tuple[Determinism, ...] = ("none", "verified", "certified")


@dataclass(slots=True)
class Stats:
    """What a request cost. candidates == accepted + rolled_back; tokens == accepted +
    canonical_tokens.

    An ordinary request's fast tokens count as candidates that are accepted at once. looked_up
    counts the candidates of the n-gram proposer. prefill_passes are passes over the prompt, or over
    tokens that are recomputed. guessed counts the thoughts that passes guessed, guessed_right those
    of them that were right.
    """

    candidates: int = 0
    accepted: int = 0
    rolled_back: int = 0
    canonical_tokens: int = 0
    rollbacks: int = 0
    windows: int = 0
    fast_passes: int = 0
    canonical_passes: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    looked_up: int = 0
    prefill_passes: int = 0
    guessed: int = 0
    guessed_right: int = 0


def sum_stats(stats: Sequence[Stats]) -> Stats:
    return Stats(**{each.name: sum(getattr(one, each.name) for one in stats) for each in fields(Stats)})


def weakest(modes: Iterable[Determinism]) -> Determinism:
    """Return the guarantee that holds for several answers together: the weakest of theirs."""
    return min(modes, key=_WEAKEST_FIRST.index, default="none")


ThoughtIds = tuple[int, ...]  # the tokens of a thought without its end token; (): the trivial thought


@dataclass(frozen=True)
class Thought:
    """What a thinking model wrote after the chunk that ends at `position`. A trivial thought has no
    text."""

    chunk: int
    position: int
    text: str
    token_ids: ThoughtIds


class Pending(Generic[T]):
    """A field of a result that is made when it is first read. All threads that read it get the same.

    A copy or a pickle of it is the value itself.
    """

    __slots__ = ("_lock", "_made", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._made: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        if self._make is not None:
            with self._lock:
                if self._make is not None:
                    self._made = self._make()
                    self._make = None  # frees what it was made of
        return cast(T, self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.get(),)


def _same(value: T) -> T:
    return value


class _PendingField:
    """A field that holds None, a value, or a `Pending` one. The default is None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, result: object, owner: type | None = None) -> Any:
        held = None if result is None else result.__dict__.get(self._name)
        return held.get() if isinstance(held, Pending) else held

    def __set__(self, result: object, value: Any) -> None:
        result.__dict__[self._name] = value


_LOGPROBS, _RECEIPT = cast(Any, _PendingField()), cast(Any, _PendingField())


@dataclass(frozen=True)
class Choice:
    """One answer. token_ids include the stop token, text does not.

    stop_reason is the stop string or the id in stop_token_ids that ended the answer. None: the
    end-of-text token or something else ended it. logprobs are None if they were not asked for.
    """

    text: str
    token_ids: ThoughtIds
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = _LOGPROBS
    thoughts: tuple[Thought, ...] = ()
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """A choice in the form of vLLM's `CompletionOutput`. It is made when `Result.outputs` is read.

    text: the answer, without the stop string or stop token.
    token_ids: the ids of the answer, its stop token included.
    finish_reason: "stop", "length", "abort" or "error".
    stop_reason: the stop string or the id in stop_token_ids that ended the answer, or None.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    choice: Choice = field(repr=False)

    @cached_property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """A dict for each token, from token id to `Logprob`: the token itself, then the most likely
        ones. None if logprobs were not asked for."""
        if self.choice.logprobs is None:
            return None
        return [with_texts(one, NO_TEXTS).to_dict() for one in self.choice.logprobs]

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the answer's logprobs. None if logprobs were not asked for."""
        if self.choice.logprobs is None:
            return None
        return sum(one.logprob for one in self.choice.logprobs)

    def finished(self) -> bool:
        """Return whether the answer has ended: always."""
        return True


@dataclass(frozen=True)
class Result:
    """One request's outcome. The fields of choices[0] can be read on the result itself.

    outputs are the choices in vLLM's form. prompt is the prompt's text: None if only token ids were
    given.

    error says why an answer ended in an error, error_code is the code of its class in
    `holdfast.errors`. prompt_logprobs, if asked for, has one entry a prompt token; the first has
    nothing before it and so no logprob. embedding, if asked for, is fp32 in little-endian order.
    stats are of all choices together, determinism is the weakest of theirs. The receipt is made when
    it is first read.
    """

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    seed: int
    determinism: Determinism
    stats: Stats
    receipt: dict[str, Any] | None = _RECEIPT
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error_code: str | None = None
    prompt: str | None = None
    request_id: str = ""
    embedding: bytes | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.choices[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.choices[0].logprobs

    @property
    def thoughts(self) -> tuple[Thought, ...]:
        return self.choices[0].thoughts

    @cached_property
    def outputs(self) -> list[CompletionOutput]:
        """The choices in vLLM's form: `result.outputs[0].text`."""
        return [
            CompletionOutput(index, one.text, list(one.token_ids), one.finish_reason, one.stop_reason, one)
            for index, one in enumerate(self.choices)
        ]

    @property
    def finished(self) -> bool:
        """Return whether the request has ended: a result is made at its end."""
        return True

    def __iter__(self) -> "Iterator[Result]":
        """Return the result itself, once. vLLM's `chat` returns a list for one conversation, too; code
        written for it reads our single result: `for output in llm.chat(messages)`."""
        yield self

    def __getitem__(self, index: int) -> "Result":
        """Return the result itself, at 0. See `__iter__`."""
        return (self,)[index]

    def __len__(self) -> int:
        return 1


def with_changes(result: Result, **changes: Any) -> Result:
    """Return the result with these fields changed. A pending receipt stays pending."""
    return replace(result, **{"receipt": result.__dict__.get("receipt"), **changes})


def decode_result(result: Result, texts: TokenTexts, **changes: Any) -> Result:
    """Return the result with the texts of the tokens in its logprobs, and with these fields changed. The
    logprobs of the answer are decoded when they are read."""
    if any(choice.logprobs for choice in result.choices):
        changes["choices"] = tuple(_decode_choice(choice, texts) for choice in result.choices)
    if result.prompt_logprobs is not None:
        changes["prompt_logprobs"] = tuple(
            [None if one is None else with_texts(one, texts) for one in result.prompt_logprobs]
        )
    return with_changes(result, **changes)


def _decode_choice(choice: Choice, texts: TokenTexts) -> Choice:
    logprobs = choice.logprobs
    if logprobs is None:
        return choice
    decoded = Pending(lambda: tuple([with_texts(one, texts) for one in logprobs]))
    return replace(choice, logprobs=cast(Any, decoded))


class Delta(NamedTuple):
    """What one choice gained since its last delta.

    Tokens may come without text, and text later than its tokens. Thoughts come before the tokens
    they led to. The last delta of a choice has its finish_reason and stop_reason. token_logprobs are the
    exact fp32 logprobs of a deterministic request's tokens, requested or not: if the engine must be
    restarted, they are compared. A named tuple, because a server sends thousands a second between its
    processes, and msgspec encodes tuples ten times as fast as dataclasses. Where one is made for each
    token, `tuple.__new__` makes it: the named tuple's own constructor is a Python function and takes
    longer. scores are the logprobs of the prompt's tokens, all at once, in a delta of their own before the
    first token; without anything else it is empty for a reader of the answer.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0  # type: ignore[assignment]  # hides tuple.index
    finish_reason: FinishReason | None = None
    thoughts: tuple[Thought, ...] = ()
    stop_reason: str | int | None = None
    token_logprobs: tuple[float, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.token_ids or self.text or self.thoughts or self.finish_reason)

    def ended_by(self, last: "Delta") -> "Delta":
        """This delta and the last one of its choice, which has text and reasons only, as one."""
        return self._replace(
            text=self.text + last.text, finish_reason=last.finish_reason, stop_reason=last.stop_reason
        )


class RequestOutput(NamedTuple):
    """What one step gave one request: a delta of one of its choices (which may be empty), and at
    the end its result."""

    request_id: int
    delta: Delta
    result: Result | None = None


def decode_delta(delta: Delta, texts: TokenTexts) -> Delta:
    """Return the delta with the texts of the tokens in its logprobs."""
    if not delta.logprobs:
        return delta
    return delta._replace(logprobs=tuple([with_texts(one, texts) for one in delta.logprobs]))


@dataclass(frozen=True)
class EmbeddingOutput:
    """An embedding, its fp32 values as Python floats. Between processes they are bytes, in
    little-endian order."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class EmbeddingResult(Sequence[float]):
    """One prompt's embedding: `outputs.embedding`, as in vLLM, or the result itself as a sequence."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput
    determinism: Determinism
    stats: Stats

    @property
    def embedding(self) -> list[float]:
        return self.outputs.embedding

    @property
    def finished(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.outputs.embedding)

    @overload
    def __getitem__(self, at: int) -> float: ...

    @overload
    def __getitem__(self, at: slice) -> list[float]: ...

    def __getitem__(self, at: int | slice) -> float | list[float]:
        return self.outputs.embedding[at]


def embedding_result(request_id: int, result: Result) -> EmbeddingResult:
    """Return the embedding in a request's result. Raise the error it ended with, if any."""
    if result.error is not None:
        raise make_error(result.error_code or "", result.error)
    assert result.embedding is not None
    output = EmbeddingOutput(unpack_embedding(result.embedding))
    ids = result.prompt_token_ids
    return EmbeddingResult(str(request_id), ids, output, result.determinism, result.stats)


def unpack_embedding(embedding: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(embedding) // 4}f", embedding))
