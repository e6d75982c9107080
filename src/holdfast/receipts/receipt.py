"""The receipt: what is needed to replay one response and check it bit for bit. It leaves the engine
as plain JSON.

It contains the request, the fingerprint of the engine that answered it, and every bit that a replay
must reproduce. It contains no time and no host name: a machine's clock proves nothing. A structured
answer's receipt also names the grammar library, which decides bits of such answers only.

The *seal* is a digest over all fields; the prompt's tokens are covered through their own digest, so
they can be left out. An engine with a key signs the seal. A prompt's digest has a random salt, so
it does not give a short prompt away. Therefore two receipts of one answer differ: in the salt, the
prompt's digest, the seal and its signature, and in `counts`, which depend on the load.
"""

import logging
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Protocol, cast

import msgspec
from msgspec import Meta

from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Pending, Result, Stats
from holdfast.core.sampling_params import MAX_TOKEN_ID, SamplingParams, params_to_json
from holdfast.core.step_plan import TokenLogprob
from holdfast.numerics.recipe import PORTABLE
from holdfast.receipts.canonical_json import (
    JsonValue,
    canonical_json,
    digest_of,
    digest_text,
    join_object,
)
from holdfast.receipts.fingerprint import Fingerprint, list_differences
from holdfast.receipts.machine import Machine, with_kernels
from holdfast.receipts.signing import SigningKey
from holdfast.structured.behaviour import GrammarLibrary, grammar_library

FORMAT = "holdfast-receipt/2"
_SALT_BYTES = 16
_COUNTS = tuple(one.name for one in fields(Stats))

_log = logging.getLogger(__name__)

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Bits = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
Salt = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Signature = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/]{85}[AQgw]==\Z")]  # the base64 of 64 bytes
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


class Signer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who signs the seal. Sealed itself, so a signature cannot be removed unnoticed."""

    algorithm: Literal["ed25519"]
    key_id: Digest


@dataclass(frozen=True)
class PromptLogprobBits:
    """Logprobs of the prompt's own tokens, from position `first` on."""

    first: int
    logprobs: LogprobBits

    def as_dict(self) -> dict[str, Any]:
        return {"first": self.first, **_plain(self.logprobs)}


@dataclass(frozen=True)
class Receipt:
    """A consistent receipt: its digests are those of its content.

    `prompt_ids` and `prompt_salt` may be left out. `grammar` is None for an answer without structured
    output, and `read_len`, the length of the prompt that a completion was scored after, unless the model
    thinks. `seal` is None until the receipt is sealed.
    """

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
    machine: Machine
    prompt_salt: str | None = None
    grammar: GrammarLibrary | None = None
    signer: Signer | None = None
    seal: str | None = None
    signature: str | None = None
    read_len: int | None = None

    @property
    def is_portable(self) -> bool:
        """Whether it names the recipe that every CPU computes with the same bits."""
        recipe = self.fingerprint.parts.get("recipe")
        return isinstance(recipe, Mapping) and recipe.get("variant") == PORTABLE

    @property
    def keeps_blocks(self) -> bool:
        """Whether weights stayed in the quantised blocks of the file, as with the dtype auto."""
        recipe = self.fingerprint.parts.get("recipe")
        return isinstance(recipe, Mapping) and bool(recipe.get("blocks"))

    @property
    def names_threads(self) -> bool:
        """Whether the number of threads is a part of the fingerprint."""
        settings = self.fingerprint.parts.get("settings")
        return isinstance(settings, Mapping) and "threads" in settings

    def differences(self, fingerprint: Fingerprint) -> list[str]:
        """Return one line for each part that decides this answer's bits and is another one here. fingerprint
        is that of the engine here."""
        found = fingerprint.differences(self.fingerprint)
        if self.grammar is None:
            return found
        return found + grammar_differences(grammar_library(), self.grammar, "here", "in the receipt")

    def as_dict(self) -> dict[str, Any]:
        ids = None if self.prompt_ids is None else list(self.prompt_ids)
        return {
            "format": FORMAT,
            "mode": self.mode,
            "fingerprint": self.fingerprint.as_dict(),
            "certificate": self.certificate,
            "engine": _plain(self.engine),
            "prompt": {"digest": self.prompt_digest, "salt": self.prompt_salt, "token_ids": ids},
            "settings": msgspec.json.decode(_settings(self.params)[0]),
            "seed": str(self.seed),
            "choices": _plain(self.choices),
            "prompt_logprobs": None if self.prompt_logprobs is None else self.prompt_logprobs.as_dict(),
            "counts": dict(self.counts),
            **({} if self.grammar is None else {"grammar": _plain(self.grammar)}),
            **({} if self.read_len is None else {"read_len": self.read_len}),
            "machine": _plain(self.machine),
            "signer": _plain(self.signer),
            "seal": self.seal,
            "signature": self.signature,
        }

    def is_of_prompt(self, ids: Sequence[int], salt: str | None) -> bool:
        """Whether this is the prompt that the receipt has the digest of."""
        return salt is not None and digest_prompt(ids, salt) == self.prompt_digest


def grammar_differences(one: GrammarLibrary, other: GrammarLibrary, here: str, there: str) -> list[str]:
    """Return one line for each part of the grammar library that differs."""
    return list_differences(
        {"grammar": msgspec.to_builtins(one)},
        {"grammar": msgspec.to_builtins(other)},
        here=here,
        there=there,
    )


def digest_prompt(ids: Sequence[int], salt: str) -> str:
    """Over the salt and the token ids. The salt hides them: without it, guesses could be tried."""
    return digest_of({"salt": salt, "token_ids": list(ids)})


def seal_of(content: Mapping[str, Any], known: Mapping[str, str] | None = None) -> str:
    """Return the digest over all fields but the seal, its signature, and the prompt's ids and salt, which the
    prompt's own digest covers. Raises ValueError for a number that no double represents.

    known is the canonical JSON of some fields, where the caller has it.
    """
    texts = dict(known or {})
    texts["prompt"] = canonical_json({"digest": content["prompt"]["digest"]})
    for name, value in content.items():
        if name not in ("seal", "signature") and name not in texts:
            texts[name] = canonical_json(value)
    return digest_text(join_object(texts))


def redact(receipt: Mapping[str, Any], *, keep_salt: bool = False) -> dict[str, Any]:
    """Return the same receipt without the prompt's tokens. The seal and the signature stay valid.

    A replay then needs the prompt and its salt. With the salt left in, it needs the prompt only,
    but guesses of the prompt can be tried against the digest.
    """
    prompt = {**receipt["prompt"], "token_ids": None}
    if not keep_salt:
        prompt["salt"] = None
    return {**receipt, "prompt": prompt}


def without_prompt(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same receipt with only the prompt's digest and salt: a replay then needs the prompt."""
    return redact(receipt, keep_salt=True)


class FingerprintSource(Protocol):
    """Where an engine's fingerprint comes from: in production a `FingerprintTask`."""

    def get(self) -> Fingerprint:
        """Return the fingerprint. Waits until it is computed."""
        ...


class ReceiptFactory:
    """Makes the receipts of one engine. With a key it signs them."""

    def __init__(
        self,
        fingerprinter: FingerprintSource,
        model: str | None,
        machine: Machine,
        key: SigningKey | None = None,
    ) -> None:
        self._fingerprinter = fingerprinter
        self._model = model
        self._machine = machine
        self.key = key

    def note_kernels(self, kernels: Sequence[str]) -> None:
        """A certificate saw these kernels: name them from now on."""
        self._machine = with_kernels(self._machine, kernels)

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
        made = make_receipt(
            self.fingerprint, certificate, self._model, request, result, logprobs, self._machine
        )
        if request.params.structured is not None:
            made = replace(made, grammar=grammar_library())
        return seal_receipt(made, self.key)

    def later(
        self,
        request: Request,
        result: Result,
        logprobs: Sequence[Sequence[TokenLogprob]],
        certificate: str | None,
    ) -> Pending[dict[str, Any] | None] | None:
        """Return the same receipt, made when it is read.

        Everything it is made of is kept by value, without the engine.
        """
        if result.error is not None:
            return None
        kept = replace(result, receipt=None, stats=replace(result.stats))

        def make() -> dict[str, Any] | None:
            try:
                return self(request, kept, logprobs, certificate)
            except Exception:  # the client shall have its answer all the same
                _log.exception("the receipt of request %d could not be made", request.request_id)
                return None

        return Pending(make)


def seal_receipt(receipt: Receipt, key: SigningKey | None = None) -> dict[str, Any]:
    """Return the receipt as JSON with its seal, signed if there is a key."""
    content = replace(receipt, signer=None if key is None else Signer("ed25519", key.key_id)).as_dict()
    # Names, small integers and hexadecimal digits: `msgspec` writes their canonical text.
    choices, counts = (
        msgspec.json.encode(value, order="sorted").decode() for value in (receipt.choices, receipt.counts)
    )
    known = {
        "fingerprint": receipt.fingerprint.canonical,
        "settings": _settings(receipt.params)[1],
        "choices": choices,
        "counts": counts,
    }
    content["seal"] = seal = seal_of(content, known)
    content["signature"] = None if key is None else key.sign(seal)
    return content


def make_receipt(
    fingerprint: Fingerprint,
    certificate: str | None,
    model: str | None,
    request: Request,
    result: Result,
    logprobs: Sequence[Sequence[TokenLogprob]],
    machine: Machine,
) -> Receipt:
    """Return a receipt without its seal. `certificate` is its digest, `model` the name the user gave,
    `logprobs` those of each choice, asked for or not."""
    choices = zip(result.choices, logprobs, strict=True)
    thinks = "thinking" in fingerprint.parts
    scored = [one for one in result.prompt_logprobs or () if one is not None]
    salt = os.urandom(_SALT_BYTES).hex()
    return Receipt(
        mode=result.determinism,
        fingerprint=fingerprint,
        certificate=certificate,
        engine=engine_hints(fingerprint, model),
        prompt_ids=result.prompt_token_ids,
        prompt_digest=digest_prompt(result.prompt_token_ids, salt),
        params=request.params,
        seed=result.seed,
        choices=tuple(_choice(choice, given, request.params, thinks=thinks) for choice, given in choices),
        prompt_logprobs=PromptLogprobBits(request.score_from or 0, logprob_bits(scored)) if scored else None,
        counts={name: getattr(result.stats, name) for name in _COUNTS},
        prompt_salt=salt,
        machine=machine,
        read_len=request.read_len if thinks else None,
    )


def engine_hints(fingerprint: Fingerprint, model: str | None) -> EngineHints:
    """Return what the engine chose, not what it was asked for: "auto" may choose differently elsewhere."""
    parts = fingerprint.parts
    device, recipe, settings = (_mapping(parts.get(name, {})) for name in ("device", "recipe", "settings"))
    threads = settings.get("threads", 1)  # on a GPU and with C kernels no bit depends on them
    assert isinstance(threads, int)
    dtype = cast(DtypeName, parts["dtype"])
    return EngineHints(model, str(device["kind"]), dtype, str(recipe["path"]), threads)


def logprob_bits(logprobs: Sequence[TokenLogprob]) -> LogprobBits:
    """The digest is over [[id, bits, [[id, bits] of the top logprobs ...]] ...]."""
    bits = _hex([one.logprob for one in logprobs])
    token_ids = [one.token_id for one in logprobs]
    if not any(map(attrgetter("top"), logprobs)):
        return LogprobBits(tuple(bits), digest_logprobs(token_ids, bits))
    tops = [_top_bits(one.top) for one in logprobs]
    return LogprobBits(tuple(bits), _digest_entries(zip(token_ids, bits, tops, strict=True)))


def _top_bits(top: Sequence[tuple[int, float]]) -> tuple[tuple[int, str], ...]:
    return tuple(zip([id_ for id_, _ in top], _hex([value for _, value in top]), strict=True))


def digest_logprobs(token_ids: Sequence[int], bits: Sequence[str]) -> str:
    """Return the digest of logprobs without top logprobs."""
    return _digest_entries(zip(token_ids, bits, [()] * len(bits), strict=True))


def _digest_entries(entries: Iterable[tuple[int, str, tuple[tuple[int, str], ...]]]) -> str:
    """Token ids and hexadecimal digits: `msgspec` writes their canonical text."""
    return digest_text(msgspec.json.encode(list(entries)).decode())


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


def _settings(params: SamplingParams) -> tuple[bytes, str]:
    """Return the settings as JSON, and their canonical JSON."""
    try:
        return _hashed_settings(params)
    except TypeError:  # a JSON schema may be unhashable
        return _hashed_settings.__wrapped__(params)


@lru_cache(64)  # the requests of a batch often have the same settings
def _hashed_settings(params: SamplingParams) -> tuple[bytes, str]:
    settings = params_to_json(params)
    return msgspec.json.encode(settings), canonical_json(settings)


def _plain(value: object) -> Any:
    """Structs and tuples as plain JSON: objects and lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _hex(values: Sequence[float]) -> list[str]:
    """Return the fp32 bits of each."""
    return struct.pack(f">{len(values)}f", *values).hex(",", 4).split(",") if values else []


def _mapping(part: JsonValue) -> Mapping[str, JsonValue]:
    assert isinstance(part, Mapping)
    return part
