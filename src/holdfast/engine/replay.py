"""What an engine does with a receipt: it repeats the request, alone or beside others, and compares the
answers bit by bit (`receipts.compare`), or it continues the answer.

To continue it, the receipt's tokens are candidates. The engine confirms them in a few passes, each with
the bits of its logprob, and then generates what follows. So an answer that ended at its token limit, or
whose client left, goes on later, elsewhere, as if it had never been interrupted. A contradiction ends it
with `GuaranteeLost`.
"""

import math
import random
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.core.results import Determinism, Result
from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.sent import Sent
from holdfast.core.stop_rules import FinishReason
from holdfast.errors import EngineStopped, InvalidRequest, PromptTooLong
from holdfast.receipts.compare import Difference, TokenText, compare, truncate_to
from holdfast.receipts.reader import parse_receipt
from holdfast.receipts.receipt import Receipt, ReceiptChoice
from holdfast.scheduler.extension import ModelExtension
from holdfast.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM
    from holdfast.text.tokenizer import Tokenizer

_MAX_NEIGHBOUR_PROMPT = 96


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


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a comparison, and how much was compared."""

    difference: Difference | None
    mode: Determinism
    num_choices: int
    num_tokens: int
    num_logprobs: int

    @property
    def same(self) -> bool:
        return self.difference is None


def replay(
    llm: "LLM",
    receipt: Receipt,
    prompt_ids: Sequence[int] | None = None,
    *,
    prompt_salt: str | None = None,
    num_neighbours: int = 0,
) -> ReplayResult:
    """Repeat the request, alone or in a batch with random ordinary requests, and compare.

    A redacted receipt needs its prompt, and its salt if that was removed, too.
    """
    prompt = require_prompt(receipt, prompt_ids, prompt_salt)
    params = replay_params(receipt, len(prompt), llm.engine.limits.max_model_len)
    longest = max(len(choice.token_ids) for choice in receipt.choices)
    neighbours = [_neighbour(random.Random(seed), llm, longest) for seed in range(num_neighbours)]
    middle = num_neighbours // 2
    prompt, completion = split_score(receipt, prompt)
    requests = [llm.engine.prepare(ids, each, want_receipt=False) for ids, each in neighbours]
    requests.insert(middle, llm.engine.prepare(prompt, params, completion=completion))
    result = llm.run_requests(requests)[middle]
    tokenizer = llm.engine.tokenizer
    return compare_result(
        receipt, result, lambda token_id: tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    )


def compare_result(receipt: Receipt, result: Result, text: TokenText) -> ReplayResult:
    if result.error is not None:
        raise EngineStopped(f"the replay could not be finished: {result.error}")
    assert result.receipt is not None, "a result without an error has a receipt"
    logprobs = (receipt.prompt_logprobs, *(one.logprobs for one in receipt.choices))
    again = truncate_to(receipt, parse_receipt(result.receipt), result)
    return ReplayResult(
        difference=compare(receipt, again, text),
        mode=again.mode,
        num_choices=len(receipt.choices),
        num_tokens=sum(len(choice.token_ids) for choice in receipt.choices),
        num_logprobs=sum(len(each.bits) for each in logprobs if each is not None),
    )


def require_prompt(
    receipt: Receipt, prompt_ids: Sequence[int] | None, prompt_salt: str | None = None
) -> list[int]:
    """Return the prompt to replay: the receipt's, or the given one if its digest is the receipt's."""
    if prompt_ids is None and receipt.prompt.token_ids is None:
        raise InvalidRequest("the receipt does not contain its prompt; give the prompt to replay the request")
    ids = list(receipt.prompt.token_ids or () if prompt_ids is None else prompt_ids)
    salt = receipt.prompt.salt if prompt_salt is None else prompt_salt
    if salt is None:
        raise InvalidRequest(
            "the receipt does not contain the salt of its prompt; give that of the whole receipt (prompt_salt, --prompt-salt)"
        )
    if not receipt.is_of_prompt(ids, salt):
        raise InvalidRequest("the given prompt is not the receipt's: its digest differs")
    return ids


def split_score(receipt: Receipt, ids: list[int]) -> tuple[list[int], list[int] | None]:
    """Return the prompt, and the completion that was scored after it, if any: a model may read them otherwise.

    Receipts made before `read_len` was recorded have the first position that was scored.
    """
    read_len, scores = receipt.read_len, receipt.prompt_logprobs
    if read_len is None and scores is not None and scores.first > 1:
        read_len = scores.first
    if read_len is None or read_len >= len(ids):
        return ids, None
    return ids[:read_len], ids[read_len:]


def replay_params(receipt: Receipt, prompt_len: int, max_len: int) -> SamplingParams:
    """Return the settings to repeat a receipt's request with: the receipt's own, its seed, and no more
    tokens than are compared. Refuses a request that does not fit max_len tokens.

    One token more than the longest answer shows whether an answer ends where the receipt's does. No
    bit of a token depends on max_tokens, nor on min_tokens where every token is below it.
    """
    params = replace(receipt.params, seed=receipt.seed)
    if prompt_len + params.max_tokens > max_len:
        raise PromptTooLong(
            f"the receipt's prompt has {prompt_len} tokens and its max_tokens is {params.max_tokens}, together more "
            f"than the context of {max_len}"
        )
    longest = max((len(choice.token_ids) for choice in receipt.choices), default=0)
    if params.max_tokens <= longest + 1:
        return params
    return replace(params, max_tokens=longest + 1, min_tokens=min(params.min_tokens, longest + 1))


def _neighbour(rng: random.Random, llm: "LLM", longest: int) -> tuple[list[int], SamplingParams]:
    """Return a request of random tokens whose answer is no longer than the replayed one."""
    limits = llm.engine.limits
    room = max(1, limits.max_model_len // 4)
    ids = [rng.randrange(limits.vocab_size) for _ in range(rng.randint(1, min(_MAX_NEIGHBOUR_PROMPT, room)))]
    params = SamplingParams(
        max_tokens=rng.randint(1, max(1, min(longest, room))),
        temperature=0.8,
        seed=rng.randrange(1 << 32),
        ignore_eos=True,
    )
    return ids, params
