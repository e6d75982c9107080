"""Compares receipts: the first difference between two answers, and what else they say differently.

Compared is what is guaranteed: token ids, finish reasons, thoughts and the fp32 bits of logprobs. How an
answer was computed (certified or verified, how many passes) may differ. The new answer of a replay is
first truncated to what the receipt covers (`truncate_to`): an aborted answer ends early, a score begins
after its prompt. Then everything must be equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from msgspec.structs import replace

from holdfast.core.results import Choice, Result, ThoughtIds
from holdfast.core.sampling_params import params_to_json, show
from holdfast.receipts.receipt import (
    LogprobBits,
    PromptLogprobBits,
    Receipt,
    ReceiptChoice,
    digest_logprobs,
    grammar_differences,
    logprob_bits,
    prompt_logprob_bits,
)

TokenText = Callable[[int], str]


@dataclass(frozen=True)
class Difference:
    """The first difference from the receipt.

    position is the index of a token of the answer, or None if the difference is elsewhere.
    """

    choice: int
    position: int | None
    what: str


def truncate_to(expected: Receipt, got: Receipt, result: Result) -> Receipt:
    """Truncate a new receipt to what the expected one covers.

    result is the result that `got` was made of; only it has the top logprobs.
    """
    choices = list(got.choices)
    for index, (one, answer) in enumerate(zip(expected.choices, result.choices, strict=False)):
        if _was_aborted(expected, got, index):
            choices[index] = _first_tokens(choices[index], answer, len(one.token_ids))
    return replace(got, choices=tuple(choices), prompt_logprobs=_truncate_scores(expected, got, result))


def _was_aborted(expected: Receipt, got: Receipt, index: int) -> bool:
    """Return whether the receipt's answer can be an aborted part of the new one: it must end before it."""
    one, other = expected.choices[index], got.choices[index]
    if one.finish_reason != "abort":
        return False
    if expected.params.max_tokens == 0:  # ends when the prompt is computed, with the last of its scores
        whole = _scores_end(got.prompt_logprobs)
        return index > 0 or whole == 0 or _scores_end(expected.prompt_logprobs) < whole
    return len(one.token_ids) < len(other.token_ids)


def _first_tokens(choice: ReceiptChoice, answer: Choice, num_tokens: int) -> ReceiptChoice:
    ids, logprobs = choice.token_ids[:num_tokens], choice.logprobs
    if answer.logprobs is not None:
        logprobs = logprob_bits(answer.logprobs[:num_tokens])
    elif logprobs is not None:
        bits = logprobs.bits[:num_tokens]
        logprobs = LogprobBits(bits, digest_logprobs(ids, bits))
    return ReceiptChoice(ids, "abort", logprobs, choice.thoughts)


def _truncate_scores(expected: Receipt, got: Receipt, result: Result) -> PromptLogprobBits | None:
    """A score begins after its prompt, its replay at the first token.

    A request aborted in its prompt has fewer scores.
    """
    one, other = expected.prompt_logprobs, got.prompt_logprobs
    if other is None:
        return None
    first = other.first if one is None else max(one.first, other.first)
    stop = _scores_end(one) if expected.is_aborted_in_prefill else _scores_end(other)
    scores = [score for score in result.prompt_logprobs or () if score is not None]
    kept = scores[first - other.first : max(0, stop - other.first)]
    return prompt_logprob_bits(kept, first)


def _scores_end(scores: PromptLogprobBits | None) -> int:
    """Return the position after the last prompt token that has a logprob; 0 if none has."""
    return 0 if scores is None else scores.first + len(scores.bits)


def compare(expected: Receipt, got: Receipt, text: TokenText | None = None) -> Difference | None:
    """Return the first difference between two receipts' answers. text is a token's, for the message."""
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


def compare_requests(one: Receipt, other: Receipt) -> list[str]:
    """Return what two receipts say differently about the request: prompt, seed and settings.

    The prompts are compared only if both receipts have their tokens.
    """
    differences = []
    ids, others = one.prompt.token_ids, other.prompt.token_ids
    if ids is not None and others is not None and ids != others:
        at = next(at for at, (a, b) in enumerate(zip_longest(ids, others)) if a != b)
        differences.append(f"prompt: {len(ids)} and {len(others)} tokens, which differ from token {at} on")
    if one.seed != other.seed:
        differences.append(f"seed: {one.seed}, {other.seed}")
    mine, theirs = params_to_json(one.params), params_to_json(other.params)
    for name in dict.fromkeys((*mine, *theirs)):
        if name != "seed" and mine.get(name) != theirs.get(name):
            differences.append(f"{name}: {show(mine.get(name))}, {show(theirs.get(name))}")
    return differences


def compare_engines(one: Receipt, other: Receipt) -> list[str]:
    """Return what two receipts say differently about what decides bits: fingerprint and grammar library."""
    here, there = "in the first receipt", "in the second"
    found = one.fingerprint.differences(other.fingerprint, here=here, there=there)
    if one.grammar is None or other.grammar is None:
        return found
    return found + grammar_differences(one.grammar, other.grammar, here, there)


def _compare_choice(
    one: ReceiptChoice, other: ReceiptChoice, text: TokenText | None
) -> tuple[int | None, str] | None:
    """(position, what) of the first difference.

    Logprobs that were not requested are in some receipts of ordinary answers and not in others;
    they are compared only where both have them.
    """
    bits, got_bits = _bits(one.logprobs), _bits(other.logprobs)
    for position, (id_, got) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if id_ != got:
            return position, f"expected token {_token(id_, text)}, got {_token(got, text)}"
        if bits is not None and got_bits is not None and bits[position] != got_bits[position]:
            return position, (
                f"the same token {_token(id_, text)}, but the bits of its logprob differ: expected {bits[position]}, "
                f"got {got_bits[position]}"
            )
    if len(one.token_ids) != len(other.token_ids):
        end = min(len(one.token_ids), len(other.token_ids))
        return end, f"expected {len(one.token_ids)} tokens, got {len(other.token_ids)}"
    if one.finish_reason != other.finish_reason:
        return None, f"expected the end to be {one.finish_reason!r}, got {other.finish_reason!r}"
    if bits is not None and got_bits is not None and one.logprobs != other.logprobs:
        return None, "the logprobs of the chosen tokens agree, the top logprobs differ"
    return _compare_thoughts(one, other)


def _token(token_id: int, text: TokenText | None) -> str:
    return str(token_id) if text is None else f"{token_id} {text(token_id)!r}"


def _compare_thoughts(one: ReceiptChoice, other: ReceiptChoice) -> tuple[None, str] | None:
    """An aborted answer has the first thoughts of the whole one."""
    if one.thoughts is None or other.thoughts is None:
        return None  # an older receipt, or a model that does not think
    found = other.thoughts[: len(one.thoughts)] if one.finish_reason == "abort" else other.thoughts
    for expected, got in zip_longest(one.thoughts, found):
        if expected != got:
            return None, f"expected the thought {_describe(expected)}, got {_describe(got)}"
    return None


def _describe(thought: tuple[int, ThoughtIds] | None) -> str:
    return "none" if thought is None else f"{list(thought[1])} after chunk {thought[0]}"


def _compare_prompts(one: PromptLogprobBits | None, other: PromptLogprobBits | None) -> str | None:
    if one is None or other is None:
        if one is other:
            return None
        expected, got = ("some", "none") if other is None else ("no", "some")
        return f"expected {expected} logprobs of the prompt's tokens, got {got}"
    if one.first != other.first:
        return f"expected the prompt's logprobs to begin at token {one.first}, got {other.first}"
    for at, (expected, got) in enumerate(zip(one.bits, other.bits, strict=False), one.first):
        if expected != got:
            return (
                f"the bits of the logprob of the prompt's token {at} differ: expected {expected}, got {got}"
            )
    num_expected, num_got = len(one.bits), len(other.bits)
    if num_expected != num_got:
        return f"expected {num_expected} logprobs of the prompt's tokens, got {num_got}"
    if one != other:
        return "the logprobs of the prompt's tokens agree, the top logprobs differ"
    return None


def _bits(logprobs: LogprobBits | None) -> tuple[str, ...] | None:
    return None if logprobs is None else logprobs.bits
