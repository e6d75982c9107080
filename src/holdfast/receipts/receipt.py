"""The receipt: what is needed to replay one response and check it bit for bit. As plain JSON it leaves the engine.

It says what was asked, by which fingerprint it was answered, and every bit that must come out again. It holds no time
and no name of a machine, so the same answer has the same receipt wherever it was given (counts aside: they tell what it
cost). It is no signature: whoever has the file can change it, and replaying it is how one finds out.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.core.params_json import settings_of
from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import ThoughtIds, TokenLogprob
from holdfast.core.stop_rules import FinishReason
from holdfast.receipts.fingerprint import Fingerprint, JsonValue, digest_of

if TYPE_CHECKING:
    from holdfast.receipts.engine_fingerprint import FingerprintTask

FORMAT = "holdfast-receipt/1"


@dataclass(frozen=True)
class LogprobBits:
    """The fp32 bits of the chosen tokens' logprobs, eight hexadecimal digits each; the digest covers the best beside
    them as well."""

    bits: tuple[str, ...]
    digest: str

    def as_dict(self) -> dict[str, Any]:
        return {"bits": list(self.bits), "digest": self.digest}


@dataclass(frozen=True)
class ReceiptChoice:
    """One answer's bits. An ordinary request's logprobs are there only if it asked for them; thoughts, as (chunk, tokens),
    only if the model thinks, trivial ones left out."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: LogprobBits | None
    thoughts: tuple[tuple[int, ThoughtIds], ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        told = (
            {}
            if self.thoughts is None
            else {"thoughts": [[chunk, list(ids)] for chunk, ids in self.thoughts]}
        )
        return {
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "logprobs": None if self.logprobs is None else self.logprobs.as_dict(),
            **told,
        }


@dataclass(frozen=True)
class PromptLogprobBits:
    """Logprobs of the prompt's own tokens, from position `first` on."""

    first: int
    logprobs: LogprobBits

    def as_dict(self) -> dict[str, Any]:
        return {"first": self.first, **self.logprobs.as_dict()}


@dataclass(frozen=True)
class EngineHints:
    """How to open an engine like the one that answered. Only the fingerprint says whether it is."""

    model: str | None
    device: str
    dtype: str
    kernels: str
    num_threads: int


@dataclass(frozen=True)
class Receipt:
    """A receipt that exists is consistent: its digests are those of what it holds. prompt_ids may be left out."""

    mode: Determinism
    fingerprint: Fingerprint
    certificate: str | None
    engine: EngineHints
    prompt_ids: tuple[int, ...] | None
    prompt_digest: str
    params: SamplingParams
    seed: int
    choices: tuple[ReceiptChoice, ...]
    prompt_logprobs: PromptLogprobBits | None
    counts: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        ids = self.prompt_ids
        return {
            "format": FORMAT,
            "mode": self.mode,
            "fingerprint": self.fingerprint.as_dict(),
            "certificate": self.certificate,
            "engine": asdict(self.engine),
            "prompt": {"digest": self.prompt_digest, "token_ids": None if ids is None else list(ids)},
            "settings": settings_of(self.params),
            "seed": str(self.seed),
            "choices": [choice.as_dict() for choice in self.choices],
            "prompt_logprobs": None if self.prompt_logprobs is None else self.prompt_logprobs.as_dict(),
            "counts": dict(self.counts),
        }


class ReceiptFactory:
    """Makes the receipts of one engine."""

    def __init__(self, fingerprinter: "FingerprintTask", model: str | None) -> None:
        self._fingerprinter = fingerprinter
        self._model = model

    @property
    def fingerprint(self) -> Fingerprint:
        """The engine's own; waits for it where the weights are still being hashed."""
        return self._fingerprinter.get()

    def __call__(
        self,
        request: Request,
        result: Result,
        logprobs: Sequence[Sequence[TokenLogprob]],
        certificate: str | None,
    ) -> dict[str, Any] | None:
        """The receipt of a result; none for one that ended in an error, of which there is nothing to keep."""
        if result.error is not None:
            return None
        made = make_receipt(self.fingerprint, certificate, self._model, request, result, logprobs)
        return made.as_dict()


def make_receipt(
    fingerprint: Fingerprint,
    certificate: str | None,
    model: str | None,
    request: Request,
    result: Result,
    logprobs: Sequence[Sequence[TokenLogprob]],
) -> Receipt:
    """certificate is a digest, or None where there is none; model is what the user called it; logprobs are those of each
    choice, asked for or not."""
    choices = zip(result.choices, logprobs, strict=True)
    scored = [one for one in result.prompt_logprobs or () if one is not None]
    return Receipt(
        mode=result.determinism,
        fingerprint=fingerprint,
        certificate=certificate,
        engine=engine_hints(fingerprint, model),
        prompt_ids=result.prompt_token_ids,
        prompt_digest=digest_of(list(result.prompt_token_ids)),
        params=request.params,
        seed=result.seed,
        choices=tuple(
            _choice(choice, given, request.params, thinks="thinking" in fingerprint.parts)
            for choice, given in choices
        ),
        prompt_logprobs=PromptLogprobBits(request.score_from or 0, logprob_bits(scored)) if scored else None,
        counts=asdict(result.stats),
    )


def without_prompt(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The same receipt with only the prompt's digest: who replays it must know the prompt."""
    return {**receipt, "prompt": {**receipt["prompt"], "token_ids": None}}


def engine_hints(fingerprint: Fingerprint, model: str | None) -> EngineHints:
    """What an engine settled on, not what it was asked for: "auto" may mean something else tomorrow."""
    parts = fingerprint.parts
    device, recipe, settings = (_mapping(parts[name]) for name in ("device", "recipe", "settings"))
    threads = settings.get("threads", 1)  # on a GPU no bit depends on them
    assert isinstance(threads, int)
    return EngineHints(model, str(device["kind"]), str(parts["dtype"]), str(recipe["path"]), threads)


def logprob_bits(logprobs: Sequence[TokenLogprob]) -> LogprobBits:
    """The digest is over [[id, bits, [[id, bits] of the best ...]] ...]."""
    bits = _hex([one.logprob for one in logprobs])
    whole: list[JsonValue] = []
    for one, chosen in zip(logprobs, bits, strict=True):
        best = _hex([value for _, value in one.top]) if one.top else []
        whole.append(
            [one.token_id, chosen, [[id_, each] for (id_, _), each in zip(one.top, best, strict=True)]]
        )
    return LogprobBits(tuple(bits), digest_of(whole))


def digest_logprobs(token_ids: Sequence[int], bits: Sequence[str]) -> str:
    """The digest of logprobs with no best beside them."""
    return digest_of([[id_, each, []] for id_, each in zip(token_ids, bits, strict=True)])


def is_score(params: SamplingParams) -> bool:
    """Whether these may be a score's settings: its prompt_logprobs begin where the completion does."""
    return params.max_tokens == 0 and params.prompt_logprobs == 0


def is_aborted_in_prefill(choices: Sequence[ReceiptChoice]) -> bool:
    """Whether the client left while the prompt was read: the first choice reads it, before its first token."""
    return choices[0].finish_reason == "abort" and not choices[0].token_ids


def _choice(
    choice: Choice, logprobs: Sequence[TokenLogprob], params: SamplingParams, *, thinks: bool
) -> ReceiptChoice:
    """Some tokens of an ordinary answer may have come with logprobs nobody asked for: all or none are kept."""
    complete = [one.token_id for one in logprobs] == list(choice.token_ids)
    assert complete or not params.deterministic, "a deterministic answer has the logprob of every token"
    bits = logprob_bits(logprobs) if complete else None
    thoughts = tuple((each.chunk, each.token_ids) for each in choice.thoughts if each.token_ids)
    return ReceiptChoice(choice.token_ids, choice.finish_reason, bits, thoughts if thinks else None)


def _hex(values: Sequence[float]) -> list[str]:
    """The fp32 bits of each."""
    digits = struct.pack(f">{len(values)}f", *values).hex()
    return [digits[at : at + 8] for at in range(0, len(digits), 8)]


def _mapping(part: JsonValue) -> Mapping[str, JsonValue]:
    assert isinstance(part, Mapping)
    return part
