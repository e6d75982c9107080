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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from holdfast.core.request import Request
from holdfast.core.results import Choice, Determinism, Pending, Result
from holdfast.core.sampling_params import (
    MAX_TOKEN_ID,
    SamplingParams,
    params_from_json,
    params_to_json,
)
from holdfast.core.step_plan import TokenLogprob
from holdfast.numerics.recipe import PORTABLE
from holdfast.receipts.canonical_json import Digest, canonical_json, digest_of, digest_text, join_object
from holdfast.receipts.fingerprint import Fingerprint, list_differences
from holdfast.receipts.machine import Machine, with_kernels
from holdfast.receipts.signing import SigningKey
from holdfast.structured.behaviour import GrammarLibrary, grammar_library

FORMAT = "holdfast-receipt/2"
_SALT_BYTES = 16

_log = logging.getLogger(__name__)

Bits = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8}\Z")]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Position = Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a receipt, written and read as it is. Its constraints are checked when it is read."""


class LogprobBits(_Part, frozen=True):
    """The fp32 bits of the sampled tokens' logprobs, eight hexadecimal digits each. The digest
    covers the top logprobs, too."""

    bits: tuple[Bits, ...]
    digest: Digest


class PromptLogprobBits(_Part, frozen=True):
    """The same of the prompt's own tokens, from position `first` on."""

    first: Position
    bits: tuple[Bits, ...]
    digest: Digest


class ReceiptChoice(_Part, frozen=True, omit_defaults=True):
    """One answer's bits. An ordinary request has logprobs only if it asked for them. Thoughts, as
    (chunk, token ids), exist only in a thinking model; trivial ones are left out."""

    token_ids: tuple[TokenId, ...]
    finish_reason: Literal["stop", "length", "abort"]  # an answer that ended in an error has no receipt
    logprobs: LogprobBits | None
    thoughts: tuple[tuple[TokenId, tuple[TokenId, ...]], ...] | None = None


class EngineHints(_Part, frozen=True):
    """How to open a similar engine. Only the fingerprint says whether it gives the same bits."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)] | None
    device: Annotated[str, Meta(min_length=1, max_length=32)]
    dtype: Literal["bfloat16", "float16", "float32"]
    kernels: str
    num_threads: Annotated[int, Meta(ge=1, le=1024)]


class SaltedPrompt(_Part, frozen=True):
    """The digest of the prompt's tokens and a salt, both of which may be left out."""

    digest: Digest
    salt: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")] | None
    token_ids: tuple[TokenId, ...] | None


class Signer(_Part, frozen=True):
    """Who signs the seal. Sealed itself, so a signature cannot be removed unnoticed."""

    algorithm: Literal["ed25519"]
    key_id: Digest


class Receipt(_Part, frozen=True, omit_defaults=True, kw_only=True, dict=True):
    """A receipt: one that was read (`reader`) has the digests of its content.

    `grammar` is None for an answer without structured output. `read_len`, the length of the prompt that
    a completion was scored after, is None unless the model thinks.
    """

    format: str
    mode: Determinism
    fingerprint: Fingerprint
    certificate: Digest | None
    engine: EngineHints
    prompt: SaltedPrompt
    settings: dict[str, Any]
    seed_text: Annotated[str, Meta(pattern=r"\A[0-9]{1,20}\Z")] = msgspec.field(name="seed")
    choices: Annotated[tuple[ReceiptChoice, ...], Meta(min_length=1)]
    prompt_logprobs: PromptLogprobBits | None
    counts: Annotated[dict[str, Annotated[int, Meta(ge=0, le=1 << 53)]], Meta(max_length=64)]
    grammar: GrammarLibrary | None = None
    read_len: Position | None = None
    machine: Machine
    signer: Signer | None
    seal: Digest
    signature: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/]{85}[AQgw]==\Z")] | None  # base64 of 64 bytes

    @cached_property
    def params(self) -> SamplingParams:
        """The settings. A missing one has its default: the receipt may be older than the setting."""
        return params_from_json(self.settings)

    @property
    def seed(self) -> int:
        return int(self.seed_text)

    @property
    def is_portable(self) -> bool:
        """Return whether it names the recipe that every CPU computes with the same bits."""
        return self.fingerprint.part("recipe").get("variant") == PORTABLE

    @property
    def keeps_blocks(self) -> bool:
        """Return whether weights stayed in the quantised blocks of the file, as with the dtype auto."""
        return bool(self.fingerprint.part("recipe").get("blocks"))

    @property
    def names_threads(self) -> bool:
        """Return whether the number of threads is a part of the fingerprint."""
        return "threads" in self.fingerprint.part("settings")

    @property
    def is_aborted_in_prefill(self) -> bool:
        """Return whether the request was aborted during prefill: the first choice computes the prompt."""
        return self.choices[0].finish_reason == "abort" and not self.choices[0].token_ids

    def differences(self, fingerprint: Fingerprint) -> list[str]:
        """Return one line for each part that decides this answer's bits and is another one here. fingerprint
        is that of the engine here."""
        found = fingerprint.differences(self.fingerprint)
        if self.grammar is None:
            return found
        return found + grammar_differences(grammar_library(), self.grammar, "here", "in the receipt")

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as plain JSON: objects and lists."""
        content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return content

    def is_of_prompt(self, ids: Sequence[int], salt: str | None) -> bool:
        """Return whether this is the prompt that the receipt has the digest of."""
        return salt is not None and digest_prompt(ids, salt) == self.prompt.digest


def grammar_differences(one: GrammarLibrary, other: GrammarLibrary, here: str, there: str) -> list[str]:
    mine, theirs = ({"grammar": msgspec.to_builtins(each)} for each in (one, other))
    return list_differences(mine, theirs, here=here, there=there)


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
    return {**receipt, "prompt": prompt if keep_salt else {**prompt, "salt": None}}


class ReceiptFactory:
    """Makes the receipts of one engine. With a key it signs them."""

    def __init__(
        self,
        fingerprint: Callable[[], Fingerprint],
        model: str | None,
        machine: Machine,
        key: SigningKey | None = None,
    ) -> None:
        """model is the name that the user gave. fingerprint may wait until the weights are hashed."""
        self._fingerprint = fingerprint
        self._model = model
        self._machine = machine
        self.key = key

    def note_kernels(self, kernels: Sequence[str]) -> None:
        """A certificate saw these kernels: name them from now on."""
        self._machine = with_kernels(self._machine, kernels)

    @property
    def fingerprint(self) -> Fingerprint:
        """The engine's own fingerprint. Waits while the weights are being hashed."""
        return self._fingerprint()

    def __call__(
        self,
        request: Request,
        result: Result,
        logprobs: Sequence[Sequence[TokenLogprob]],
        certificate: str | None,
    ) -> Pending[dict[str, Any] | None] | None:
        """Return the receipt of a result, made when it is read; None if the result has an error.

        Everything it is made of is kept by value, without the engine.
        """
        if result.error is not None:
            return None
        kept = replace(result, receipt=None, stats=replace(result.stats))

        def make() -> dict[str, Any] | None:
            try:
                return self.make_receipt(request, kept, logprobs, certificate)
            except Exception:  # the client shall have its answer all the same
                _log.exception("the receipt of request %d could not be made", request.request_id)
                return None

        return Pending(make)

    def make_receipt(
        self,
        request: Request,
        result: Result,
        logprobs: Sequence[Sequence[TokenLogprob]],
        certificate: str | None,
    ) -> dict[str, Any]:
        """Return the receipt of a result with its seal, as JSON. It is signed if there is a key.

        logprobs are those of each choice, asked for or not. certificate is its digest.
        """
        fingerprint, params, salt = self.fingerprint, request.params, os.urandom(_SALT_BYTES).hex()
        thinks, ids = "thinking" in fingerprint.parts, result.prompt_token_ids
        settings, canonical_settings = _settings(params)
        answers = zip(result.choices, logprobs, strict=True)
        choices = tuple(_choice(choice, given, params, thinks=thinks) for choice, given in answers)
        scored = [one for one in result.prompt_logprobs or () if one is not None]
        counts = asdict(result.stats)
        content = Receipt(
            format=FORMAT,
            mode=result.determinism,
            fingerprint=fingerprint,
            certificate=certificate,
            engine=engine_hints(fingerprint, self._model),
            prompt=SaltedPrompt(digest_prompt(ids, salt), salt, None),
            settings=settings,
            seed_text=str(result.seed),
            choices=choices,
            prompt_logprobs=prompt_logprob_bits(scored, request.score_from or 0),
            counts=counts,
            grammar=None if params.structured is None else grammar_library(),
            read_len=request.read_len if thinks else None,
            machine=self._machine,
            signer=None if self.key is None else Signer("ed25519", self.key.key_id),
            seal="",  # that of all other fields
            signature=None,
        ).as_dict()
        content["prompt"]["token_ids"] = list(ids)  # many: sooner copied than written and read
        # Names, small integers and hexadecimal digits: `msgspec` writes their canonical text.
        known = {
            "fingerprint": fingerprint.canonical,
            "settings": canonical_settings,
            "choices": msgspec.json.encode(choices, order="sorted").decode(),
            "counts": msgspec.json.encode(counts, order="sorted").decode(),
        }
        seal = seal_of(content, known)
        return {**content, "seal": seal, "signature": None if self.key is None else self.key.sign(seal)}


def engine_hints(fingerprint: Fingerprint, model: str | None) -> EngineHints:
    """Return what the engine chose, not what it was asked for: "auto" may choose differently elsewhere."""
    device, path = str(fingerprint.part("device")["kind"]), str(fingerprint.part("recipe")["path"])
    # On a GPU and with C kernels no bit depends on the threads.
    threads = fingerprint.part("settings").get("threads", 1)
    return EngineHints(model, device, fingerprint.parts["dtype"], path, threads)


def logprob_bits(logprobs: Sequence[TokenLogprob]) -> LogprobBits:
    """The digest is over [[id, bits, [[id, bits] of the top logprobs ...]] ...]."""
    bits = _hex([one.logprob for one in logprobs])
    token_ids = [one.token_id for one in logprobs]
    if not any(map(attrgetter("top"), logprobs)):
        return LogprobBits(tuple(bits), digest_logprobs(token_ids, bits))
    tops = [_top_bits(one.top) for one in logprobs]
    return LogprobBits(tuple(bits), _digest_entries(zip(token_ids, bits, tops, strict=True)))


def prompt_logprob_bits(logprobs: Sequence[TokenLogprob], first: int) -> PromptLogprobBits | None:
    if not logprobs:
        return None
    found = logprob_bits(logprobs)
    return PromptLogprobBits(first, found.bits, found.digest)


def _top_bits(top: Sequence[tuple[int, float]]) -> tuple[tuple[int, str], ...]:
    return tuple(zip([id_ for id_, _ in top], _hex([value for _, value in top]), strict=True))


def digest_logprobs(token_ids: Sequence[int], bits: Sequence[str]) -> str:
    """Return the digest of logprobs without top logprobs."""
    return _digest_entries(zip(token_ids, bits, [()] * len(bits), strict=True))


def _digest_entries(entries: Iterable[tuple[int, str, tuple[tuple[int, str], ...]]]) -> str:
    """Token ids and hexadecimal digits: `msgspec` writes their canonical text."""
    return digest_text(msgspec.json.encode(list(entries)).decode())


def is_score(params: SamplingParams) -> bool:
    """Return whether these may be a score's settings: its prompt_logprobs start at the completion."""
    return params.max_tokens == 0 and params.prompt_logprobs == 0


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


def _settings(params: SamplingParams) -> tuple[dict[str, Any], str]:
    """Return the settings as JSON values, which are shared, and as canonical JSON."""
    try:
        return _hashed_settings(params)
    except TypeError:  # a JSON schema may be unhashable
        return _hashed_settings.__wrapped__(params)


@lru_cache(64)  # the requests of a batch often have the same settings
def _hashed_settings(params: SamplingParams) -> tuple[dict[str, Any], str]:
    settings = params_to_json(params)
    return settings, canonical_json(settings)


def _hex(values: Sequence[float]) -> list[str]:
    """Return the fp32 bits of each."""
    return struct.pack(f">{len(values)}f", *values).hex(",", 4).split(",") if values else []
