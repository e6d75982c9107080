"""What the engine makes of its certificate: refusal, sizes left out, and the copy on disk."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from holdfast import SamplingParams
from holdfast.certification import certifier as certifying
from holdfast.certification.certificate import certificate_key, load_certificate
from holdfast.certification.split_k import SplitChoice
from holdfast.engine import builder as build
from holdfast.engine.config import EngineConfig
from holdfast.engine.llm import LLM
from holdfast.errors import DeterminismRefused
from holdfast.numerics.layer import run_layer
from holdfast.numerics.ops import Linear
from holdfast.numerics.select_backend import CPU, open_backend

PROMPTS = [[5, 6, 7], [9] * 40, [11, 12]]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, deterministic=True, logprobs=2)
ORDINARY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)


class Bent:
    """A backend with a fault in its products: `bend(product, canonical)` adds it in place."""

    def __init__(self, inner: Any, bend: Any) -> None:
        self._inner, self._bend = inner, bend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def linear(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out = self._inner.linear(x, w, canonical=canonical)
        self._bend(out, canonical)
        return out

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out = self._inner.logits(x, w, canonical=canonical)
        self._bend(out, canonical)
        return out

    def layer(self, *args: Any, canonical: bool) -> None:
        run_layer(self, *args, canonical=canonical)  # type: ignore[arg-type]


class BentNorm(Bent):
    """A fault in the norm instead, which has no canonical form of its own."""

    def linear(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.linear(x, w, canonical=canonical)

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.logits(x, w, canonical=canonical)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = self._inner.rms_norm(x, weight, eps)
        self._bend(out, True)
        return out


class BentLayer(Bent):
    """Operations that are right, and a layer in one go that is not."""

    def linear(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.linear(x, w, canonical=canonical)

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.logits(x, w, canonical=canonical)

    def layer(self, residual: Tensor, *args: Any, canonical: bool) -> None:
        self._inner.layer(residual, *args, canonical=canonical)
        self._bend(residual, canonical)


class CutColumns(Bent):
    """Nothing is wrong; products of 64 columns are in two pieces, `bend` columns first, as an engine on a GPU may decide."""

    def linear(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.linear(x, w, canonical=canonical)

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        return self._inner.logits(x, w, canonical=canonical)

    def pack(self, *args: Any) -> Linear:
        packed = self._inner.pack(*args)
        return replace(packed, split_n={8: self._bend}) if packed.out_features == 64 else packed


def open_bent(
    model: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    bend: Any,
    kind: type[Bent] = Bent,
    **config: Any,
) -> LLM:
    open_backend(torch.float32, num_threads=1)  # kernels are built in the session's own cache
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(cache))
    for module in (build, certifying):
        monkeypatch.setattr(module, "open_backend", lambda *a, **k: kind(open_backend(*a, **k), bend))
    return LLM(str(model), dtype="fp32", max_pass_tokens=64, max_num_seqs=8, **config)


def same_bits(one: LLM, other: LLM) -> bool:
    first, second = (llm.generate(PROMPTS, PARAMS) for llm in (one, other))
    return [(r.token_ids, r.logprobs) for r in first] == [(r.token_ids, r.logprobs) for r in second]


@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_a_row_that_feels_its_index_refuses_the_guarantee(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def by_index(out: Tensor, canonical: bool) -> None:
        out += torch.arange(len(out))[:, None] * 1e-3

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, by_index, determinism=mode)
    assert llm.engine.certificate is not None
    assert llm.engine.certificate.sizes == ()
    with pytest.raises(DeterminismRefused, match=r"does not repeat its own bits for layers\.0\.qkv"):
        llm.generate(PROMPTS, PARAMS)
    with pytest.raises(DeterminismRefused):
        llm.generate(PROMPTS, [ORDINARY, PARAMS, ORDINARY])
    assert not llm.engine.has_work
    assert [len(result.token_ids) for result in llm.generate(PROMPTS, ORDINARY)] == [10, 10, 10]


def test_a_row_that_feels_its_neighbours_refuses_the_guarantee(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_neighbours(out: Tensor, canonical: bool) -> None:
        out += out.mean() * 1e-3

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, by_neighbours)
    with pytest.raises(DeterminismRefused):
        llm.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("kind", [Bent, BentNorm])
def test_a_canonical_pass_of_another_total_that_differs_refuses_the_guarantee(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Bent]
) -> None:
    def at_two_slabs(out: Tensor, canonical: bool) -> None:
        if canonical and len(out) == 32:
            out *= 1 + 1e-5

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, at_two_slabs, kind, determinism="verify")
    with pytest.raises(DeterminismRefused, match="does not repeat its own bits"):
        llm.generate(PROMPTS, PARAMS)


def test_a_layer_in_one_go_that_differs_at_a_size_is_not_certified_there(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(out: Tensor, canonical: bool) -> None:
        if len(out) == 1:
            out *= 1 + 1e-5

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, alone, BentLayer)
    assert llm.engine.certificate is not None
    assert 1 not in llm.engine.certificate.sizes
    assert 2 in llm.engine.certificate.sizes


def test_sizes_that_differ_are_not_certified_and_answers_stay_the_same(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_llm: LLM
) -> None:
    def at_some_sizes(out: Tensor, canonical: bool) -> None:
        if not canonical and len(out) in (1, 3, 40):
            out *= 1 + 1e-6

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, at_some_sizes)
    assert llm.engine.certificate is not None
    sizes = llm.engine.certificate.sizes
    assert not {1, 3, 40} & set(sizes)
    assert {2, 4, 16, 64} <= set(sizes)
    assert llm.engine.certificate.refusal is None
    assert same_bits(llm, auto_llm)
    assert all(result.determinism == "certified" for result in llm.generate(PROMPTS, PARAMS))


def test_without_a_certified_size_every_token_is_verified_and_rollbacks_happen(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_llm: LLM
) -> None:
    def grossly(out: Tensor, canonical: bool) -> None:
        if not canonical:
            out += torch.arange(out.shape[1]) * 1e-2

    llm = open_bent(tiny_llama, tmp_path, monkeypatch, grossly)
    assert llm.engine.certificate is not None
    assert llm.engine.certificate.sizes == ()
    assert llm.engine.certificate.refusal is None
    assert same_bits(llm, auto_llm)
    results = llm.generate(PROMPTS, PARAMS)
    assert all(result.determinism == "verified" for result in results)
    assert sum(result.stats.rolled_back for result in results) > 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the certificates that were made, not read."""
    made: list[str] = []
    original = certifying.certify

    def certify(*args: Any, **kwargs: Any) -> Any:
        certificate = original(*args, **kwargs)
        made.append(certificate.key)
        return certificate

    monkeypatch.setattr(certifying, "certify", certify)
    return made


def start(model: Path, **config: Any) -> LLM:
    return LLM(str(model), **{"dtype": "fp32", "max_pass_tokens": 32, "max_num_seqs": 8, **config})


def assert_plain(value: Any) -> None:
    """No type of a library's: torch calls its version a TorchVersion, which no encoder takes for a text."""
    assert type(value) in (dict, list, tuple, str, int, float, bool, type(None)), repr(value)
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        assert_plain(one)


def test_a_certificate_is_made_once_and_read_again(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str], auto_llm: LLM
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    first, second = start(tiny_llama), start(tiny_llama)
    assert first.engine.certificate is not None
    assert_plain(first.engine.certificate.as_dict())
    assert len(counted) == 1
    assert first.engine.certificate == second.engine.certificate == load_certificate(counted[0])
    assert same_bits(first, second)
    start(tiny_llama, max_pass_tokens=48)  # another question, another certificate
    start(tiny_llama, dtype="bf16")
    assert len(set(counted)) == len(counted) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("null"),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "sizes": [True, "x"]})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "sizes": {"a": 1}})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "checks": 3})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "subject": {}})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "refusal": 5})),
        lambda path: path.write_text("[" * 100_000),
    ],
)  # fmt: skip
def test_a_spoiled_file_is_as_good_as_none(cache_dir: Path, spoil: Any, auto_llm: LLM) -> None:
    certificate = auto_llm.engine.certificate
    assert certificate is not None
    path = cache_dir / "certificates" / f"{certificate.key}.json"
    before = path.read_bytes()
    assert load_certificate(certificate.key) == certificate
    try:
        spoil(path)
        assert load_certificate(certificate.key) is None
    finally:
        path.write_bytes(before)


def test_a_spoiled_file_is_made_anew(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str], auto_llm: LLM
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    start(tiny_llama)
    path = tmp_path / "certificates" / f"{counted[0]}.json"
    path.write_text("{")
    start(tiny_llama)
    assert len(counted) == 2
    assert load_certificate(counted[0]) is not None


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counted: list[str],
    caplog: pytest.LogCaptureFixture,
    auto_llm: LLM,
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(blocked))
    llm = start(tiny_llama)
    assert "could not be kept" in caplog.text
    assert len(llm.generate(PROMPTS, PARAMS)) == 3
    assert len(counted) == 1


def test_nothing_half_written_is_left(cache_dir: Path, auto_llm: LLM) -> None:
    assert {path.suffix for path in (cache_dir / "certificates").iterdir()} == {".json"}
    assert os.environ["HOLDFAST_CACHE_DIR"] == str(cache_dir)


def test_the_digest_is_of_what_it_says(auto_llm: LLM) -> None:
    from dataclasses import replace

    certificate = auto_llm.engine.certificate
    assert certificate is not None
    assert certificate_key(certificate.subject) == certificate.key
    assert replace(certificate, seconds=99.0).digest == certificate.digest
    assert replace(certificate, sizes=(1,)).digest != certificate.digest


def test_a_certificate_is_for_the_cuts_it_tested(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, same, other = (
        open_bent(tiny_llama, tmp_path, monkeypatch, first, CutColumns).engine.certificate
        for first in (16, 16, 32)
    )
    assert one is not None and other is not None and one == same
    assert one.key != other.key
    cuts = cast(dict[str, list[list[int]]], one.subject["cuts"])
    assert cuts and all(found == [[8, 16]] for found in cuts.values())


def test_open_backend_receives_chosen_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = (
        SplitChoice("gate_up", 28672, 4096, 0, (256,), 1, 1, (), ((256, 16128), (448, 21504))),
        SplitChoice("down", 4096, 14336, 2, (256,), 1, 4),
    )
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(build, "uses_triton", lambda *given: True)
    monkeypatch.setattr(build, "choose_recipes", lambda *given: chosen)
    monkeypatch.setattr(build, "open_backend", lambda dtype, **given: opened.append(given))
    settings = SimpleNamespace(threads=1)
    build._open_backend(EngineConfig(), cast(Any, None), torch.bfloat16, CPU, cast(Any, settings), None)
    (given,) = opened
    assert given["split_k"] == {(28672, 4096): 0, (4096, 14336): 2}
    assert given["split_n"] == {(28672, 4096): {256: 16128, 448: 21504}}
