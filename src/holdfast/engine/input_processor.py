"""Makes the requests of Python callers, and checks every request before it is queued.

Everything that can be wrong with a request raises here: a `Prepared` one is valid. It runs in the
caller's thread, so that a slow prompt or a slow grammar delays no other request.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol, Unpack

from holdfast.core.cancel_token import CancelToken
from holdfast.core.pooling import Pooling
from holdfast.core.request import NO_DEFAULTS, Prepared, Request, RequestDefaults, RequestOptions
from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.sent import Sent
from holdfast.core.structured_output import Grammar, StructuredOutput
from holdfast.errors import AnswerEnded, DeterminismRefused, InvalidRequest, PromptTooLong
from holdfast.text.tokenizer import Tokenizer
from holdfast.thinking.config import ThinkingConfig, check_forced

Prompt = str | Sequence[int]
_MAX_BAD_WORD_LISTS = 64


class GrammarFactory(Protocol):
    """Makes grammars.

    In production a `GrammarCompiler`; a benchmark wraps it to measure the masks.
    """

    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> Grammar:
        """Return a new grammar for one answer, at its start.

        Raises `InvalidRequest` if it cannot be compiled, `Cancelled` once the token is cancelled.
        """

    def is_compiled(self, structured: StructuredOutput) -> bool:
        """Return whether `compile` would return at once."""


@dataclass(frozen=True)
class RequestLimits:
    """What the model and the engine allow a request, and what they assume where it says nothing."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    refusal: str | None  # why deterministic requests are refused, or None
    thinking: ThinkingConfig | None = None  # None: the model does not think
    defaults: RequestDefaults = NO_DEFAULTS
    hidden_size: int = 0  # dimensions of an embedding


class InputProcessor:
    """Makes the requests of one engine, in any thread.

    require_room raises for a length the KV cache could never hold.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: RequestLimits,
        grammars: GrammarFactory,
        require_room: Callable[[int], None],
    ) -> None:
        self._tokenizer = tokenizer
        self.limits = limits
        self._grammars = grammars
        self._require_room = require_room
        self._bad_words = lru_cache(_MAX_BAD_WORD_LISTS)(partial(_bad_words, tokenizer))
        self._next_id = 1
        self._id_lock = threading.Lock()

    def read(
        self,
        prompt: Prompt,
        params: SamplingParams,
        completion: Prompt | None = None,
        **options: Unpack[RequestOptions],
    ) -> Request:
        """Make the request of a Python caller. It gets its id when it is checked.

        A text completion is tokenised alone, without special tokens.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}")
        return self.limits.defaults.request(
            self._encode(prompt),
            params,
            max_model_len=self.limits.max_model_len,
            completion_ids=None if completion is None else self._encode(completion, add_special_tokens=False),
            echo_text=prompt if isinstance(prompt, str) else None,
            **options,
        )

    def check(self, request: Request, token: CancelToken | None = None) -> Prepared:
        """Check a request and compile its grammars. Raises `Cancelled` soon after the token is
        cancelled."""
        params = request.params
        if request.read_len is not None:
            _check_score(request)
        if request.pooling is not None:
            self._check_pooling(request.pooling, params)
        self._check(request.prompt_ids, params)
        if params.echo and request.read_len is None and not request.echo_text:
            request = replace(request, echo_text=self._decode(request.prompt_ids))
        self._require_room(request.max_len)
        if request.sent:
            self._check_sent(request.sent, params)
        grammars: tuple[Grammar, ...] = ()
        if params.structured is not None:
            grammars = tuple(self._grammars.compile(params.structured, token) for _ in range(params.n))
        if not request.request_id:
            request = replace(request, request_id=self._take_ids(params.n))
        return Prepared(request, self.limits.eos_ids, self._bad_words(params.bad_texts), grammars)

    def _check_sent(self, sent: tuple[Sent, ...], params: SamplingParams) -> None:
        """What was sent must be the beginning of an answer to this request."""
        if len(sent) != params.n:
            raise InvalidRequest(f"{len(sent)} answers were sent, but n is {params.n}")
        if all(choice.has_ended for choice in sent):
            raise InvalidRequest("every answer that was sent has ended; nothing is left to generate")
        for choice in sent:
            ids = choice.token_ids
            self._check_ids(ids, "the answer that was sent: ")
            if choice.has_ended and not ids:
                raise InvalidRequest("an answer that has ended holds at least one token")
            if ids and not choice.has_ended and len(ids) >= params.max_tokens:
                raise InvalidRequest(
                    f"{len(ids)} tokens were sent and max_tokens is {params.max_tokens}; ask for more tokens"
                )
            ends = {*params.stop_ids, *(() if params.ignore_eos else self.limits.eos_ids)}
            if not choice.has_ended and not ends.isdisjoint(ids):
                raise AnswerEnded("the answer that was sent holds a token that ends it; nothing follows")
            if params.deterministic and len(choice.values) != len(ids):
                raise InvalidRequest(
                    "a deterministic answer that was sent needs the logprob of each of its tokens"
                )

    def is_quick(self, params: SamplingParams) -> bool:
        """Return whether such a request has no bad words, and no grammar but one that is known already."""
        structured = params.structured
        return not params.bad_texts and (structured is None or self._grammars.is_compiled(structured))

    def _take_ids(self, count: int) -> int:
        with self._id_lock:
            first = self._next_id
            self._next_id += count
        return first

    def _encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        return _token_ids(prompt)

    def _check_pooling(self, pooling: Pooling, params: SamplingParams) -> None:
        if params.max_tokens != 0:
            raise InvalidRequest("an embedding is computed without generating anything: see score_params")
        size = self.limits.hidden_size
        if pooling.dimensions is not None and pooling.dimensions > size:
            raise InvalidRequest(
                f"dimensions is {show(pooling.dimensions)}; embeddings of this model have at most {size}"
            )

    def _decode(self, prompt_ids: Sequence[int]) -> str:
        """Return the prompt as text.

        A model may have more ids than its tokenizer; the ids above have no text.
        """
        return self._tokenizer.decode([one for one in prompt_ids if one < self._tokenizer.vocab_size])

    def _check_ids(self, ids: Sequence[int], where: str = "") -> None:
        vocab_size = self.limits.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            token_id = next(one for one in ids if not 0 <= one < vocab_size)
            raise InvalidRequest(
                f"{where}token id {show(token_id)} is not in the vocabulary of {vocab_size} tokens"
            )

    def _check(self, prompt_ids: tuple[int, ...], params: SamplingParams) -> None:
        limits = self.limits
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty; give at least one token")
        self._check_ids(prompt_ids)
        self._check_ids(params.stop_ids, "stop_token_ids: ")
        self._check_ids(params.bad_ids, "bad_token_ids: ")
        self._check_ids(params.allowed_ids or (), "allowed_token_ids: ")
        self._check_ids([id_ for id_, _ in params.biases], "logit_bias: ")
        self._check_ids(params.named_ids, "logprob_token_ids: ")
        check_forced(limits.thinking, params, self._check_ids)
        if len(prompt_ids) + params.max_tokens > limits.max_model_len:
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is {params.max_tokens}, together more than "
                f"the context of {limits.max_model_len}; shorten the prompt or lower max_tokens"
            )
        if params.deterministic and limits.refusal is not None:
            raise DeterminismRefused(limits.refusal)


def _check_score(request: Request) -> None:
    if request.params.max_tokens != 0 or request.params.prompt_logprobs is None:
        raise InvalidRequest("a completion is scored without generating anything: see score_params")
    if not request.read_len or request.read_len >= request.prompt_len:
        raise InvalidRequest("there is nothing to score: prompt and completion need at least one token each")


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    if set(map(type, prompt)) == {int}:
        return tuple(prompt)  # the loop below takes 20 times as long
    for token_id in prompt:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequest(
                f"a prompt is text or a list of token ids; {show(token_id)} is not a token id"
            )
    return tuple(prompt)


def _bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as token ids, as it is written at the start of a text and after a space.

    A word that starts with white space is taken only as it is: a line break after a space would be
    tokenised as a space and something else.
    """
    spellings = [
        spelling for word in words for spelling in ((word,) if word[:1].isspace() else (word, f" {word}"))
    ]
    spelled = map(tuple, tokenizer.encode_all(spellings))
    return tuple(dict.fromkeys(ids for ids in spelled if ids))
