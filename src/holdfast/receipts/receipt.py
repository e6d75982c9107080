"""The receipt: what is needed to replay one response and check it bit for bit. It leaves the engine
as plain JSON.

It contains the request, the fingerprint of the engine that answered it, and every bit that a replay
must reproduce. It contains no time and no machine name, so the same answer has the same receipt
everywhere (except for `counts`, which depend on the load). It is not a signature: the file can be
changed, and a replay is what detects that.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Result
from holdfast.core.sampling_params import MAX_TOKEN_ID, SamplingParams, params_to_json
from holdfast.core.step_plan import TokenLogprob
from holdfast.receipts.fingerprint import Fingerprint, JsonValue, digest_of

if TYPE_CHECKING:
    from holdfast.receipts.engine_fingerprint import FingerprintTask

FORMAT = "holdfast-receipt/1"

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Bits = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
DtypeName = Literal["bfloat16", "float16", "float32"]


# These are written and read as they are: their constraints are checked when a receipt is read.


class LogprobBits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fp32 bits of the sampled tokens' logprobs, eight hexadecimal digits each. The digest
    covers the top logprobs, too."""

    bits: tuple[Bits, ...]
    digest: Digest


class ReceiptChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer's bits. An ordinary request has logprobs only if it asked for them. Thoughts, as
    (chunk, token ids), exist only in a thinking model; trivial ones are left out."""

    token_ids: tuple[TokenId, ...]
    finish_reason: Literal["stop", "length", "abort"]  # an answer that ended in an error has no receipt
    logprobs: LogprobBits | None
    thoughts: tuple[tuple[TokenId, tuple[TokenId, ...]], ...] | None = None


class EngineHints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to open a similar engine. Only the fingerprint says whether it gives the same bits."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)] | None
    device: Annotated[str, Meta(min_length=1, max_length=32)]
    dtype: DtypeName
    kernels: str
    num_threads: Annotated[int, Meta(ge=1, le=1024)]


@dataclass(frozen=True)
class PromptLogprobBits:
    """Logprobs of the prompt's own tokens, from position `first` on."""

    first: int
    logprobs: LogprobBits

    def as_dict(self) -> dict[str, Any]:
        return {"first": self.first, **_plain(self.logprobs)}


@dataclass(frozen=True)
class Receipt:
    """A consistent receipt: its digests are those of its content. `prompt_ids` may be left out."""

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
            "engine": _plain(self.engine),
            "prompt": {"digest": self.prompt_digest, "token_ids": None if ids is None else list(ids)},
            "settings": params_to_json(self.params),
            "seed": str(self.seed),
            "choices": _plain(self.choices),
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
        """The engine's own fingerprint. Waits while the weights are being hashed."""
        return self._fingerprinter.get()

    def __call__(
        self,
        request: Request,
        result: Result,
        logprobs: Sequence[Sequence[TokenLogprob]],
        certificate: str | None,
    ) -> dict[str, Any] | None:
        """The receipt of a result; None for a result that ended in an error."""
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
    """`certificate` is its digest, `model` the name the user gave, `logprobs` those of each choice,
    asked for or not."""
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
    """The same receipt with only the prompt's digest: a replay then needs the prompt."""
    return {**receipt, "prompt": {**receipt["prompt"], "token_ids": None}}


def engine_hints(fingerprint: Fingerprint, model: str | None) -> EngineHints:
    """What the engine chose, not what it was asked for: "auto" may choose differently elsewhere."""
    parts = fingerprint.parts
    device, recipe, settings = (_mapping(parts[name]) for name in ("device", "recipe", "settings"))
    threads = settings.get("threads", 1)  # on a GPU no bit depends on them
    assert isinstance(threads, int)
    dtype = cast(DtypeName, parts["dtype"])
    return EngineHints(model, str(device["kind"]), dtype, str(recipe["path"]), threads)


def logprob_bits(logprobs: Sequence[TokenLogprob]) -> LogprobBits:
    """The digest is over [[id, bits, [[id, bits] of the top logprobs ...]] ...]."""
    bits = _hex([one.logprob for one in logprobs])
    whole: list[JsonValue] = []
    for one, chosen in zip(logprobs, bits, strict=True):
        best = _hex([value for _, value in one.top]) if one.top else []
        whole.append(
            [one.token_id, chosen, [[id_, each] for (id_, _), each in zip(one.top, best, strict=True)]]
        )
    return LogprobBits(tuple(bits), digest_of(whole))


def digest_logprobs(token_ids: Sequence[int], bits: Sequence[str]) -> str:
    """The digest of logprobs without top logprobs."""
    return digest_of([[id_, each, []] for id_, each in zip(token_ids, bits, strict=True)])


def is_score(params: SamplingParams) -> bool:
    """Whether these may be a score's settings: its prompt_logprobs start at the completion."""
    return params.max_tokens == 0 and params.prompt_logprobs == 0


def is_aborted_in_prefill(choices: Sequence[ReceiptChoice]) -> bool:
    """Whether the request was aborted during prefill: the first choice computes the prompt."""
    return choices[0].finish_reason == "abort" and not choices[0].token_ids


def _choice(
    choice: Choice, logprobs: Sequence[TokenLogprob], params: SamplingParams, *, thinks: bool
) -> ReceiptChoice:
    """An ordinary answer may have logprobs for some tokens only: keep all or none."""
    complete = [one.token_id for one in logprobs] == list(choice.token_ids)
    assert complete or not params.deterministic, "a deterministic answer has the logprob of every token"
    bits = logprob_bits(logprobs) if complete else None
    thoughts = tuple((each.chunk, each.token_ids) for each in choice.thoughts if each.token_ids)
    assert choice.finish_reason != "error", "an answer that ended in an error has no receipt"
    return ReceiptChoice(choice.token_ids, choice.finish_reason, bits, thoughts if thinks else None)


def _plain(value: object) -> Any:
    """Structs and tuples as plain JSON: objects and lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _hex(values: Sequence[float]) -> list[str]:
    """The fp32 bits of each."""
    digits = struct.pack(f">{len(values)}f", *values).hex()
    return [digits[at : at + 8] for at in range(0, len(digits), 8)]


def _mapping(part: JsonValue) -> Mapping[str, JsonValue]:
    assert isinstance(part, Mapping)
    return part
