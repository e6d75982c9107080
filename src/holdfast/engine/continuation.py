"""Continues the answer of a receipt: its tokens come out again, bit for bit, and generation goes on.

The receipt's tokens are candidates. The engine confirms them in a few passes, each with the bits of
its logprob, and then generates what follows. So an answer that ended at its token limit, or whose
client left, goes on later, elsewhere, as if it had never been interrupted. A contradiction ends it
with `GuaranteeLost`.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent_answer import SentAnswer, SentChoice
from holdfast.core.step_plan import ThinkRule, ThoughtIds, TokenLogprob
from holdfast.errors import InvalidRequest
from holdfast.receipts.receipt import Receipt, ReceiptChoice
from holdfast.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from holdfast.text.tokenizer import Tokenizer


def continued_params(receipt: Receipt, max_tokens: int) -> SamplingParams:
    """The settings of the receipt's request with another token limit.

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
    longest = max(len(choice.token_ids) for choice in receipt.choices if choice.finish_reason != "stop")
    if max_tokens <= longest:
        raise InvalidRequest(
            f"the receipt's answer has {longest} tokens and max_tokens is {max_tokens}; ask for more tokens"
        )
    return replace(receipt.params, seed=receipt.seed, max_tokens=max_tokens, echo=False)


def sent_answer(
    receipt: Receipt,
    prompt_ids: Sequence[int],
    tokenizer: "Tokenizer",
    *,
    chunk_len: int = 0,
    while_answering: bool = False,
) -> SentAnswer:
    """What the client has: the receipt's tokens, their logprobs, their text and their thoughts.

    chunk_len and while_answering are of a model that thinks.
    """
    skip = receipt.params.skip_special_tokens
    rule = ThinkRule.of(receipt.params, len(prompt_ids), while_answering=while_answering)

    def sent_choice(choice: ReceiptChoice) -> SentChoice:
        known = [id_ for id_ in choice.token_ids if id_ < tokenizer.vocab_size]
        text = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=skip).extend(known)
        return SentChoice(
            choice.token_ids,
            _logprobs(choice),
            len(text),
            _thoughts(choice, len(prompt_ids), chunk_len, rule),
            "stop" if choice.finish_reason == "stop" else None,
        )

    return SentAnswer(receipt.seed, tuple(map(sent_choice, receipt.choices)))


def _logprobs(choice: ReceiptChoice) -> tuple[TokenLogprob, ...]:
    bits = () if choice.logprobs is None else choice.logprobs.bits
    values = struct.unpack(f">{len(bits)}f", bytes.fromhex("".join(bits)))
    return tuple(map(TokenLogprob, choice.token_ids, values))


def _thoughts(
    choice: ReceiptChoice, prompt_len: int, chunk_len: int, rule: ThinkRule
) -> tuple[ThoughtIds, ...]:
    """The thoughts after chunks 0, 1, 2, ... A receipt leaves trivial ones out. The last token of an
    answer is in no chunk: its KV was not computed."""
    thoughts = dict(choice.thoughts or ())
    chunks = range((prompt_len + len(choice.token_ids) - 1) // chunk_len if chunk_len else 0)
    num_thoughts = sum(rule.thinks(chunk, chunk_len) for chunk in chunks)
    if chunk_len and max(thoughts, default=-1) >= num_thoughts:
        raise InvalidRequest(
            f"the receipt has a thought after chunk {max(thoughts)}, but {num_thoughts} chunks of its answer are "
            "thought about"
        )
    return tuple(thoughts.get(chunk, ()) for chunk in range(num_thoughts))
