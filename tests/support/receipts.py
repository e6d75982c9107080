"""Receipts for tests."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.request import NO_DEFAULTS, Request
from holdfast.core.results import Choice, Determinism, Result, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.engine.llm.llm import LLM
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.machine import describe_machine
from holdfast.receipts.receipt import ReceiptFactory, digest_prompt, seal_of
from holdfast.receipts.signing import SigningKey

FieldPath = tuple[str | int, ...]

PARTS = Fingerprint.of(
    {
        "weights": "0" * 64,
        "config": {},
        "tokenizer": "1" * 64,
        "chat_template": None,
        "dtype": "float32",
        "recipe": {"path": "torch"},
        "rope_tables": "3" * 64,
        "code": {"model": 1, "sampling": "1+unknown"},
        "device": {"kind": "cpu", "name": "abacus", "instructions": "2" * 64},
        "settings": {
            "threads": 2,
            "matmul_precision": "highest",
            "cpu_capability": "DEFAULT",
            "environment": {},
        },
        "canary": {"rms_norm": "4" * 64},
        "libraries": {"holdfast": "0"},
    }
)
MACHINE = describe_machine("cpu", "abacus", "abacus", ())


def receipt_of(
    params: SamplingParams,
    *choices: tuple[int, ...],
    scored: int | None = None,
    key: SigningKey | None = None,
) -> dict[str, Any]:
    """A receipt without an engine. `scored`: the first token of [1, 2, 3] with a logprob."""
    answers = tuple(Choice("", ids, "length") for ids in choices or ((4, 5),))
    mode: Determinism = "verified" if params.deterministic else "none"
    if scored is None and params.prompt_logprobs is not None:
        scored = 1
    seed = 11 if params.seed is None else params.seed
    scores = None if scored is None else tuple(TokenLogprob(id_, -id_ / 4) for id_ in (1, 2, 3)[scored:])
    result = Result((1, 2, 3), answers, seed=seed, determinism=mode, stats=Stats(), prompt_logprobs=scores)
    params = NO_DEFAULTS.decide(params, 3, 64)
    request = Request(1, result.prompt_token_ids, params, result.seed, read_len=scored)
    logprobs = [[TokenLogprob(id_, -id_ / 3) for id_ in one.token_ids] for one in answers]
    factory = ReceiptFactory(lambda: PARTS, "some/model", MACHINE, key)
    return factory.make_receipt(request, result, logprobs, "a" * 64)


def resealed(receipt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """With these fields changed and a seal made anew, as a forger without the key can."""
    changed = {**receipt, **changes}
    return {**changed, "seal": seal_of(changed)}


def unsigned(receipt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same without a signer and a signature."""
    return resealed(receipt, signer=None, signature=None, **changes)


def prompt_of(ids: Sequence[int], salt: str = "5" * 32) -> dict[str, Any]:
    """The receipt's entry of a prompt."""
    return {"digest": digest_prompt(ids, salt), "salt": salt, "token_ids": list(ids)}


def leaves(value: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Paths of everything that is no object or list with something in it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = False
    for key, one in inner:
        found = True
        yield from leaves(one, (*path, key))
    if not found:
        yield path


def branches(value: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Paths of all objects and lists."""
    if isinstance(value, dict | list):
        yield path
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from branches(one, (*path, key))


def at(value: Any, path: FieldPath) -> Any:
    for step in path:
        value = value[step]
    return value


def other_value(value: Any) -> Any:
    """A value of the same kind that a careless edit or a forger might put there."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("1" if value[-1:] != "1" else "2")
    return {None: "0" * 64}.get(value) if value is None else [0]


def edits(receipt: dict[str, Any]) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    """Every leaf changed, every leaf removed, and something added to every object and list."""
    for path in leaves(receipt):
        changed = copy.deepcopy(receipt)
        at(changed, path[:-1])[path[-1]] = other_value(at(receipt, path))
        yield path, changed
        removed = copy.deepcopy(receipt)
        del at(removed, path[:-1])[path[-1]]
        yield path, removed
    for path in branches(receipt):
        grown = copy.deepcopy(receipt)
        where = at(grown, path)
        where.update(extra=0) if isinstance(where, dict) else where.append(0)
        yield path, grown


def ask(llm: LLM, prompt: str | Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """One answer's receipt."""
    receipt = llm.generate([prompt], params)[0].receipt
    assert receipt is not None
    return receipt
