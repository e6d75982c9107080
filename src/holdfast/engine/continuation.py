"""Continues the answer of a receipt: its tokens come out again, bit for bit, and generation goes on.

The receipt's tokens are candidates. The engine confirms them in a few passes, each with the bits of
its logprob, and then generates what follows. So an answer that ended at its token limit, or whose
client left, goes on later, elsewhere, as if it had never been interrupted. A contradiction ends it
with `GuaranteeLost`.
"""

import math
import struct
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.sent import Sent
from holdfast.core.stop_rules import FinishReason
from holdfast.errors import InvalidRequest
from holdfast.receipts.receipt import Receipt, ReceiptChoice
from holdfast.scheduler.extension import ModelExtension
from holdfast.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from holdfast.text.tokenizer import Tokenizer


def continued_params(receipt: Receipt, max_tokens: int) -> SamplingParams:
    """Return the settings of the receipt's request with another token limit.

    No bit of a token depends on it. Raises `InvalidRequest` if there is nothing to continue.
    """
    if not receipt.params.deterministic:
        raise InvalidRequest(
            "the receipt is of an ordinary answer, which has no bits to check; only a deterministic one can be "
            "continued"
        )
    if receipt.params.max_tokens == 0:
        raise InvalidRequest("the receipt is of a score or of a prompt; it has no answer to continue")
    if all(choice.finish_reason == "stop" for choice in receipt.choices):
        raise InvalidRequest("the receipt's answer is complete (finish_reason is stop); nothing follows it")
    if not isinstance(max_tokens, int):
        raise InvalidRequest(f"max_tokens must be a number of tokens, not {show(max_tokens)}")
    lens = [len(choice.token_ids) for choice in receipt.choices if choice.finish_reason != "stop"]
    longest = max(lens)
    if max_tokens < longest or max_tokens <= min(lens):
        raise InvalidRequest(
            f"the receipt's answer has {longest} tokens and max_tokens is {max_tokens}; ask for more tokens"
        )
    return replace(receipt.params, seed=receipt.seed, max_tokens=max_tokens, echo=False)


def sent_of(
    receipt: Receipt,
    prompt_ids: Sequence[int],
    tokenizer: "Tokenizer",
    max_tokens: int,
    *,
    extension: ModelExtension | None = None,
) -> tuple[Sent, ...]:
    """Return what the client has: the receipt's tokens, their logprobs, their text and their thoughts.

    An answer that has its max_tokens while another of its request has not has ended. extension: of a
    model that thinks.
    """
    skip = receipt.params.skip_special_tokens

    def sent_choice(choice: ReceiptChoice) -> Sent:
        known = [id_ for id_ in choice.token_ids if id_ < tokenizer.vocab_size]
        text = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=skip).extend(known)
        thoughts = []
        if extension is not None:
            thoughts = extension.of_receipt(
                choice.thoughts or (), receipt.params, len(prompt_ids), len(choice.token_ids)
            )
        return Sent(
            array("i", choice.token_ids),
            array("f", _logprobs(choice)),
            len(text),
            thoughts,
            finish_reason=_finish_reason(choice, max_tokens),
        )

    return tuple(map(sent_choice, receipt.choices))


def _finish_reason(choice: ReceiptChoice, max_tokens: int) -> FinishReason | None:
    if choice.finish_reason == "length" and len(choice.token_ids) < max_tokens:
        return None
    return None if choice.finish_reason == "abort" else choice.finish_reason


def _logprobs(choice: ReceiptChoice) -> tuple[float, ...]:
    bits = () if choice.logprobs is None else choice.logprobs.bits
    logprobs = struct.unpack(f">{len(bits)}f", bytes.fromhex("".join(bits)))
    if any(map(math.isnan, logprobs)):  # it would not be compared
        raise InvalidRequest("a logprob of the receipt is not a number")
    return logprobs
