"""Asks a receipt's request again and compares: the same to the bit, or where it first differs.

What is compared is what is promised: token ids, finish reasons and the fp32 bits of logprobs. How the answer was come by
(certified or verified, how many passes) may differ.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.core.params import SamplingParams
from holdfast.core.result import Determinism
from holdfast.engine.fingerprint import Fingerprint, digest_of
from holdfast.engine.llm import LLM
from holdfast.engine.receipt import LogprobBits, PromptBits, Receipt, ReceiptChoice, Receipts
from holdfast.engine.receipt_reader import parse_receipt
from holdfast.errors import EngineStopped, InvalidRequest

TokenText = Callable[[int], str]

_CUT_SHORT = ("abort", "error")
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


def fingerprint_of(llm: LLM) -> Fingerprint:
    """The engine's own; waits for it where the weights are still being hashed."""
    receipts = llm.engine.receipts
    assert isinstance(receipts, Receipts), "an engine that was built makes receipts"
    return receipts.fingerprint


def replay(
    llm: LLM, receipt: Receipt, prompt_ids: Sequence[int] | None = None, *, num_neighbours: int = 0
) -> Replay:
    """Ask again, alone or among random ordinary requests, and compare."""
    prompt = require_prompt(receipt, prompt_ids)
    params = replace(receipt.params, seed=receipt.seed)
    longest = max(len(choice.token_ids) for choice in receipt.choices)
    neighbours = [_neighbour(random.Random(number), llm, longest) for number in range(num_neighbours)]
    at = num_neighbours // 2
    batch = [*neighbours[:at], (prompt, params), *neighbours[at:]]
    result = llm.generate([ids for ids, _ in batch], [each for _, each in batch])[at]
    if result.error is not None:
        raise EngineStopped(f"the replay could not be finished: {result.error}")
    assert result.receipt is not None, "a result without an error has a receipt"
    again = parse_receipt(result.receipt)
    return Replay(
        difference=compare(
            receipt, again, lambda id_: llm.engine.tokenizer.token_bytes(id_).decode("utf-8", "replace")
        ),
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
    """(position, what) of the first difference. An answer that was cut short is compared as far as it goes."""
    bits, got_bits = _bits(one.logprobs), _bits(other.logprobs)
    for position, (id_, got) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if id_ != got:
            return position, f"expected token {id_} {text(id_)!r}, got {got} {text(got)!r}"
        if bits is not None and got_bits is not None and bits[position] != got_bits[position]:
            return position, (
                f"the same token {id_} {text(id_)!r}, but the bits of its logprob differ: expected {bits[position]}, "
                f"got {got_bits[position]}"
            )
    cut = one.finish_reason in _CUT_SHORT
    if len(one.token_ids) != len(other.token_ids) and not (cut and len(one.token_ids) < len(other.token_ids)):
        ends = min(len(one.token_ids), len(other.token_ids))
        return ends, f"expected {len(one.token_ids)} tokens, got {len(other.token_ids)}"
    if cut:
        return None
    if one.finish_reason != other.finish_reason:
        return None, f"expected the end to be {one.finish_reason!r}, got {other.finish_reason!r}"
    if one.logprobs is not None and one.logprobs != other.logprobs:
        return None, "the chosen tokens' logprobs agree, those of the best beside them differ"
    return None


def _compare_prompts(one: PromptBits | None, other: PromptBits | None) -> str | None:
    """What differs in the prompt's own logprobs. A score begins behind its prompt, a replay of it at the first token."""
    if one is None:
        return None
    if other is None or other.first > one.first:
        return "logprobs of the prompt's own tokens were expected, got none"
    bits = other.logprobs.bits[one.first - other.first :]
    for number, (expected, got) in enumerate(zip(one.logprobs.bits, bits, strict=False)):
        if expected != got:
            at = one.first + number
            return (
                f"the bits of the logprob of the prompt's token {at} differ: expected {expected}, got {got}"
            )
    if len(bits) < len(one.logprobs.bits):
        return f"expected {len(one.logprobs.bits)} logprobs of the prompt's own tokens, got {len(bits)}"
    if other.first == one.first and len(bits) == len(one.logprobs.bits) and one != other:
        return "the logprobs of the prompt's own tokens agree, those of the best beside them differ"
    return None


def _bits(logprobs: LogprobBits | None) -> tuple[str, ...] | None:
    return None if logprobs is None else logprobs.bits


def _neighbour(rng: random.Random, llm: LLM, longest: int) -> tuple[list[int], SamplingParams]:
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
