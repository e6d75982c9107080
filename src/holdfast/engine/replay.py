"""Asks a receipt's request again and compares: the same to the bit, or where it first differs.

What is compared is what is promised: token ids, finish reasons and the fp32 bits of logprobs. How the answer was come by
(certified or verified, how many passes) may differ. The new answer is first cut to what the receipt goes over (`cut_to`):
an answer its client left ends early, a score begins late. Then everything must be equal.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from holdfast.core.results import Choice, Determinism, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import ThoughtIds
from holdfast.errors import EngineStopped, InvalidRequest
from holdfast.receipts.fingerprint import Fingerprint, digest_of
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import (
    LogprobBits,
    PromptLogprobBits,
    Receipt,
    ReceiptChoice,
    ReceiptFactory,
    digest_logprobs,
    is_aborted_in_prefill,
    logprob_bits,
)

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM

TokenText = Callable[[int], str]

_LONGEST_PROMPT = 96  # of a neighbour


@dataclass(frozen=True)
class Difference:
    """The first bit that is not the receipt's. position counts the answer's tokens from 0; None: not at a token."""

    choice: int
    position: int | None
    what: str


@dataclass(frozen=True)
class Replay:
    """What came of it."""

    difference: Difference | None
    mode: Determinism
    num_choices: int
    num_tokens: int
    num_logprobs: int

    @property
    def same(self) -> bool:
        return self.difference is None


def fingerprint_of(llm: "LLM") -> Fingerprint:
    """The engine's own; waits for it where the weights are still being hashed."""
    receipts = llm.engine.receipts
    assert isinstance(receipts, ReceiptFactory), "an engine that was built makes receipts"
    return receipts.fingerprint


def replay(
    llm: "LLM", receipt: Receipt, prompt_ids: Sequence[int] | None = None, *, num_neighbours: int = 0
) -> Replay:
    """Ask again, alone or among random ordinary requests, and compare."""
    prompt = require_prompt(receipt, prompt_ids)
    params = replace(receipt.params, seed=receipt.seed)
    longest = max(len(choice.token_ids) for choice in receipt.choices)
    neighbours = [_neighbour(random.Random(number), llm, longest) for number in range(num_neighbours)]
    at = num_neighbours // 2
    batch = [*neighbours[:at], (prompt, params), *neighbours[at:]]
    result = llm.generate([ids for ids, _ in batch], [each for _, each in batch])[at]
    text = llm.engine.tokenizer
    return compare_result(receipt, result, lambda id_: text.token_bytes(id_).decode("utf-8", "replace"))


def compare_result(receipt: Receipt, result: Result, text: TokenText) -> Replay:
    """What came of asking again, wherever that was done."""
    if result.error is not None:
        raise EngineStopped(f"the replay could not be finished: {result.error}")
    assert result.receipt is not None, "a result without an error has a receipt"
    again = cut_to(receipt, parse_receipt(result.receipt), result)
    return Replay(
        difference=compare(receipt, again, text),
        mode=again.mode,
        num_choices=len(receipt.choices),
        num_tokens=sum(len(choice.token_ids) for choice in receipt.choices),
        num_logprobs=sum(
            len(choice.logprobs.bits) for choice in receipt.choices if choice.logprobs is not None
        ),
    )


def require_prompt(receipt: Receipt, prompt_ids: Sequence[int] | None) -> list[int]:
    """The receipt's prompt, or the one that was given, if it is the same."""
    if prompt_ids is None and receipt.prompt_ids is None:
        raise InvalidRequest("the receipt leaves its prompt out; give it to replay the request")
    ids = list(receipt.prompt_ids or () if prompt_ids is None else prompt_ids)
    if digest_of([*ids]) != receipt.prompt_digest:
        raise InvalidRequest("the prompt that was given is not the receipt's: its digest differs")
    return ids


def cut_to(expected: Receipt, got: Receipt, result: Result) -> Receipt:
    """The new answer as far as the receipt's goes; result is the one `got` tells of, and knows the best beside each token."""
    choices = list(got.choices)
    for index, (one, answer) in enumerate(zip(expected.choices, result.choices, strict=False)):
        if _was_left(expected, got, index):
            choices[index] = _first_tokens(choices[index], answer, len(one.token_ids))
    return replace(got, choices=tuple(choices), prompt_logprobs=_cut_scores(expected, got, result))


def _was_left(expected: Receipt, got: Receipt, index: int) -> bool:
    """Whether the client can have left this answer where the receipt says: only before its end."""
    one, other = expected.choices[index], got.choices[index]
    if one.finish_reason != "abort":
        return False
    if (
        expected.params.max_tokens == 0
    ):  # an answer of no tokens ends when the prompt is read, with the last of its scores
        whole = _reach(got.prompt_logprobs)
        return index > 0 or whole == 0 or _reach(expected.prompt_logprobs) < whole
    return len(one.token_ids) < len(other.token_ids)


def _first_tokens(choice: ReceiptChoice, answer: Choice, num_tokens: int) -> ReceiptChoice:
    ids, logprobs = choice.token_ids[:num_tokens], choice.logprobs
    if answer.logprobs is not None:
        logprobs = logprob_bits(answer.logprobs[:num_tokens])
    elif logprobs is not None:
        bits = logprobs.bits[:num_tokens]
        logprobs = LogprobBits(bits, digest_logprobs(ids, bits))
    return ReceiptChoice(ids, "abort", logprobs, choice.thoughts)


def _cut_scores(expected: Receipt, got: Receipt, result: Result) -> PromptLogprobBits | None:
    """A score begins behind its prompt, a replay of it at the first token. Who left while the prompt was read has fewer."""
    one, other = expected.prompt_logprobs, got.prompt_logprobs
    if other is None:
        return None
    first = other.first if one is None else max(one.first, other.first)
    stop = _reach(one) if is_aborted_in_prefill(expected.choices) else _reach(other)
    scores = [score for score in result.prompt_logprobs or () if score is not None]
    kept = scores[first - other.first : max(0, stop - other.first)]
    return PromptLogprobBits(first, logprob_bits(kept)) if kept else None


def _reach(scores: PromptLogprobBits | None) -> int:
    """The position behind the last token of the prompt that has a logprob; 0 if none has."""
    return 0 if scores is None else scores.first + len(scores.logprobs.bits)


def compare(expected: Receipt, got: Receipt, text: TokenText) -> Difference | None:
    """The first difference between two receipts' answers."""
    scored = _compare_prompts(expected.prompt_logprobs, got.prompt_logprobs)
    if scored is not None:
        return Difference(0, None, scored)
    for index, (one, other) in enumerate(zip(expected.choices, got.choices, strict=False)):
        found = _compare_choice(one, other, text)
        if found is not None:
            position, what = found
            return Difference(index, position, what)
    if len(expected.choices) != len(got.choices):
        what = f"{len(expected.choices)} choices expected, got {len(got.choices)}"
        return Difference(min(len(expected.choices), len(got.choices)), None, what)
    return None


def _compare_choice(
    one: ReceiptChoice, other: ReceiptChoice, text: TokenText
) -> tuple[int | None, str] | None:
    """(position, what) of the first difference. An ordinary answer may have logprobs nobody asked for, once or twice."""
    bits, got_bits = _bits(one.logprobs), _bits(other.logprobs)
    for position, (id_, got) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if id_ != got:
            return position, f"expected token {id_} {text(id_)!r}, got {got} {text(got)!r}"
        if bits is not None and got_bits is not None and bits[position] != got_bits[position]:
            return position, (
                f"the same token {id_} {text(id_)!r}, but the bits of its logprob differ: expected {bits[position]}, "
                f"got {got_bits[position]}"
            )
    if len(one.token_ids) != len(other.token_ids):
        ends = min(len(one.token_ids), len(other.token_ids))
        return ends, f"expected {len(one.token_ids)} tokens, got {len(other.token_ids)}"
    if one.finish_reason != other.finish_reason:
        return None, f"expected the end to be {one.finish_reason!r}, got {other.finish_reason!r}"
    if bits is not None and got_bits is not None and one.logprobs != other.logprobs:
        return None, "the chosen tokens' logprobs agree, those of the best beside them differ"
    return _compare_thoughts(one, other)


def _compare_thoughts(one: ReceiptChoice, other: ReceiptChoice) -> tuple[None, str] | None:
    """Who left an answer has the first of its thoughts."""
    if one.thoughts is None or other.thoughts is None:
        return None  # a receipt from before they were kept, or no model that thinks
    found = other.thoughts[: len(one.thoughts)] if one.finish_reason == "abort" else other.thoughts
    for expected, got in zip_longest(one.thoughts, found):
        if expected != got:
            return None, f"expected the thought {_told(expected)}, got {_told(got)}"
    return None


def _told(thought: tuple[int, ThoughtIds] | None) -> str:
    return "none" if thought is None else f"{list(thought[1])} behind chunk {thought[0]}"


def _compare_prompts(one: PromptLogprobBits | None, other: PromptLogprobBits | None) -> str | None:
    """What differs in the prompt's own logprobs."""
    if one is None or other is None:
        if one is other:
            return None
        expected, got = ("some", "none") if other is None else ("no", "some")
        return f"expected {expected} logprobs of the prompt's own tokens, got {got}"
    if one.first != other.first:
        return f"expected the prompt's logprobs to begin at token {one.first}, got {other.first}"
    for at, (expected, got) in enumerate(
        zip(one.logprobs.bits, other.logprobs.bits, strict=False), one.first
    ):
        if expected != got:
            return (
                f"the bits of the logprob of the prompt's token {at} differ: expected {expected}, got {got}"
            )
    num_expected, num_got = len(one.logprobs.bits), len(other.logprobs.bits)
    if num_expected != num_got:
        return f"expected {num_expected} logprobs of the prompt's own tokens, got {num_got}"
    if one != other:
        return "the logprobs of the prompt's own tokens agree, those of the best beside them differ"
    return None


def _bits(logprobs: LogprobBits | None) -> tuple[str, ...] | None:
    return None if logprobs is None else logprobs.bits


def _neighbour(rng: random.Random, llm: "LLM", longest: int) -> tuple[list[int], SamplingParams]:
    """A request of random tokens, whose answer is no longer than the one it stands beside."""
    limits = llm.engine.limits
    room = max(1, limits.max_model_len // 4)
    ids = [rng.randrange(limits.vocab_size) for _ in range(rng.randint(1, min(_LONGEST_PROMPT, room)))]
    params = SamplingParams(
        max_tokens=rng.randint(1, max(1, min(longest, room))),
        temperature=0.8,
        seed=rng.randrange(1 << 32),
        ignore_eos=True,
    )
    return ids, params
