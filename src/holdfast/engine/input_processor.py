"""From what a client asks to a `Request`: tokenised, checked, with its seed and its grammars.

A request that exists is valid. Whatever is wrong is said here, before anything is queued, in the thread of whoever asks, so
that a slow prompt or a slow form holds nobody else up.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.core.grammar import Grammar
from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import DeterminismRefused, InvalidRequest, PromptTooLong
from holdfast.text.tokenizer import Tokenizer


class Grammars(Protocol):
    """Makes grammars; in production `engine.grammar_compiler`."""

    def compile(self, form: StructuredOutput) -> Grammar:
        """A grammar of its own for one answer, at its beginning. Raises `InvalidRequest` if the form is no good."""
        ...


@dataclass(frozen=True)
class Limits:
    """What a request must keep to."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    refusal: str | None  # why deterministic requests are refused, or None
    max_thought: int = 0  # tokens of a thought; 0: the model does not think
    thought_end: int = -1  # the token behind one


class InputProcessor:
    """Makes the requests of one engine, from any thread. require_room refuses what the KV cache could never hold."""

    def __init__(
        self, tokenizer: Tokenizer, limits: Limits, grammars: Grammars, require_room: Callable[[int], None]
    ) -> None:
        self.grammars = grammars
        self._tokenizer = tokenizer
        self._limits = limits
        self._require_room = require_room
        self._next_id = 1
        self._numbering = threading.Lock()

    def make(
        self, prompt: str | Sequence[int], params: SamplingParams, echo_text: str | None = None
    ) -> Request:
        """A valid request, or an error that says what is wrong. Nothing is queued yet; any thread may ask.

        echo_text is what the prompt's ids were made from, where it is known.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}")
        prompt_ids = self._encode(prompt)
        self._check(prompt_ids, params)
        echo = (echo_text or self._echo(prompt, prompt_ids)) if params.echo else ""
        score_from = 1 if params.prompt_logprobs is not None else None
        return self._request(prompt_ids, params, score_from, echo)

    def make_score(
        self,
        prompt: str | Sequence[int],
        completion: str | Sequence[int],
        params: SamplingParams,
    ) -> Request:
        """A request for the logprobs of a completion, by `score_params`.

        A text completion is tokenised alone, without special tokens.
        """
        if params.max_tokens != 0 or params.prompt_logprobs is None:
            raise InvalidRequest("a completion is scored without generating anything: see score_params")
        prompt_ids = self._encode(prompt)
        given = self._encode(completion, add_special_tokens=False)
        if not prompt_ids or not given:
            raise InvalidRequest(
                "there is nothing to score: prompt and completion need at least one token each"
            )
        self._check(prompt_ids + given, params)
        scored = self._request(prompt_ids + given, params, len(prompt_ids), "")
        return replace(scored, read_len=len(prompt_ids))

    def _echo(self, prompt: str | Sequence[int], prompt_ids: Sequence[int]) -> str:
        """The prompt as text. A model may have more ids than its tokenizer; those behind have no text."""
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode([one for one in prompt_ids if one < self._tokenizer.vocab_size])

    def _encode(self, prompt: str | Sequence[int], *, add_special_tokens: bool = True) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
        return _token_ids(prompt)

    def _request(
        self, prompt_ids: tuple[int, ...], params: SamplingParams, score_from: int | None, echo: str
    ) -> Request:
        self._require_room(len(prompt_ids) + params.max_tokens)
        form = params.structured
        grammars = tuple(self.grammars.compile(form) for _ in range(params.n)) if form is not None else ()
        with self._numbering:
            first = self._next_id
            self._next_id += params.n
        bad_words = _bad_words(self._tokenizer, params.bad_texts)
        eos_ids = self._limits.eos_ids
        return Request(
            first,
            prompt_ids,
            params,
            _seed(params),
            eos_ids,
            score_from=score_from,
            bad_words=bad_words,
            echo_text=echo,
            grammars=grammars,
        )

    def _check(self, prompt_ids: tuple[int, ...], params: SamplingParams) -> None:
        limits = self._limits
        if not prompt_ids:
            raise InvalidRequest("the prompt is empty; give at least one token")
        named = (
            *params.stop_ids,
            *params.bad_ids,
            *(params.allowed_ids or ()),
            *(id_ for id_, _ in params.biases),
            *(id_ for _, thought in params.forced for id_ in thought),
        )
        for ids in (prompt_ids, named):
            if ids and not (min(ids) >= 0 and max(ids) < limits.vocab_size):
                token_id = next(one for one in ids if not 0 <= one < limits.vocab_size)
                raise InvalidRequest(
                    f"token id {show(token_id)} is not in the vocabulary of {limits.vocab_size} tokens"
                )
        if params.forced and not limits.max_thought:
            raise InvalidRequest("forced_thoughts are for models that think; this one does not")
        for _, thought in params.forced:
            if len(thought) > limits.max_thought:
                raise InvalidRequest(f"a thought of this model has at most {limits.max_thought} tokens")
            if limits.thought_end in thought:
                raise InvalidRequest(
                    f"forced_thoughts holds {limits.thought_end}, which ends a thought and is no part of one; "
                    "[] is the empty thought"
                )
        if len(prompt_ids) + params.max_tokens > limits.max_model_len:
            raise PromptTooLong(
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is {params.max_tokens}, together more than "
                f"the context of {limits.max_model_len}; shorten the prompt or lower max_tokens"
            )
        if params.deterministic and limits.refusal is not None:
            raise DeterminismRefused(limits.refusal)


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidRequest(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    for token_id in prompt:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise InvalidRequest(f"a prompt is text or a list of token ids; {show(token_id)} is no token id")
    return tuple(prompt)


def _seed(params: SamplingParams) -> int:
    """The request's own seed; one made for it if it samples without one; 0 for greedy, which draws nothing."""
    if params.seed is not None:
        return params.seed
    return 0 if params.greedy else secrets.randbits(63)


def _bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word as tokens, as it stands at the beginning of a text and behind a space. One that brings its own white space
    is meant as it is: the line break behind a space would be a space and something else.
    """
    spelled = (
        tuple(tokenizer.encode(form, add_special_tokens=False))
        for word in words
        for form in ((word,) if word[:1].isspace() else (word, f" {word}"))
    )
    return tuple(dict.fromkeys(ids for ids in spelled if ids))
