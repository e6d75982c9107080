"""Certification of an engine: refusal, sizes that are not certified, and the file on disk."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast import SamplingParams
from holdfast.certification import certification as certifying
from holdfast.certification.certificate import certificate_key, load_certificate, save_certificate
from holdfast.certification.gemm import choose
from holdfast.certification.gemm.recipes import GemmRecipe
from holdfast.engine.config import EngineConfig
from holdfast.engine.llm.llm import LLM
from holdfast.engine.start import builder as build
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import DeterminismRefused
from holdfast.models.dummy import tiny_config
from holdfast.numerics.arrays import HOST
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.batch_sizes import cpu_batch_sizes
from holdfast.numerics.cache_dir import read_checked, write_checked
from holdfast.numerics.layer import run_layer
from holdfast.numerics.ops import Linear
from support.faulty_backend import ChangedBackend

PROMPTS = [[5, 6, 7], [9] * 40, [11, 12]]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, deterministic=True, logprobs=2)
ORDINARY = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)


class Faulty(ChangedBackend):
    """A backend whose layers run operation by operation. Its kinds have a `fault`."""

    def __init__(self, backend: Any, fault: Any) -> None:
        super().__init__(backend)
        self._fault = fault

    def layer(self, *args: Any, canonical: bool) -> None:
        run_layer(self, *args, canonical=canonical)  # type: ignore[arg-type]


class FaultyGemm(Faulty):
    """`fault(product, canonical)` adds it in place."""

    def linear(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out = self._backend.linear(x, w, canonical=canonical)
        self._fault(out, canonical)
        return out

    def logits(self, x: Tensor, w: Any, *, canonical: bool) -> Tensor:
        out = self._backend.logits(x, w, canonical=canonical)
        self._fault(out, canonical)
        return out


class FaultyNorm(Faulty):
    """A fault in the norm, which has one form only."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, centered: bool = False) -> Tensor:
        out = self._backend.rms_norm(x, weight, eps, centered=centered)
        self._fault(out, True)
        return out


class FaultyLayer(Faulty):
    """The operations are right, the fused layer is not."""

    def layer(self, residual: Tensor, *args: Any, canonical: bool) -> None:
        self._backend.layer(residual, *args, canonical=canonical)
        self._fault(residual, canonical)


class SplitN(Faulty):
    """No fault: GEMMs of 64 columns have a split-N of `fault` columns, as on a GPU."""

    def pack(self, *args: Any) -> Linear:
        packed = self._backend.pack(*args)
        return replace(packed, split_n={8: self._fault}) if packed.out_features == 64 else packed


def open_faulty(
    model: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    kind: type[Faulty] = FaultyGemm,
    **config: Any,
) -> LLM:
    open_backend(torch.float32, num_threads=1)  # builds the C kernels in the cache of the test session
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(cache))
    monkeypatch.setattr(build, "open_backend", lambda *a, **k: kind(open_backend(*a, **k), fault))
    return LLM(str(model), **{"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 8, **config})


def same_bits(one: LLM, other: LLM) -> bool:
    first, second = (llm.generate(PROMPTS, PARAMS) for llm in (one, other))
    return [(r.token_ids, r.logprobs) for r in first] == [(r.token_ids, r.logprobs) for r in second]


def by_index(out: Tensor, canonical: bool) -> None:
    out += np.arange(len(out), dtype=np.float32)[:, None] * np.float32(1e-3)


def by_neighbours(out: Tensor, canonical: bool) -> None:
    out += out.mean() * 1e-3


@pytest.mark.parametrize(
    ("fault", "mode"), [(by_index, "auto"), (by_index, "verify"), (by_neighbours, "auto")]
)
def test_dependence_on_the_rest_of_the_batch_refuses_determinism(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, mode: str
) -> None:
    llm = open_faulty(tiny_llama, tmp_path, monkeypatch, fault, determinism=mode)
    assert llm.engine.certificate is not None
    assert llm.engine.certificate.sizes == ()
    with pytest.raises(DeterminismRefused, match=r"does not repeat its own bits for synthetic qkv"):
        llm.generate(PROMPTS, PARAMS)
    with pytest.raises(DeterminismRefused):
        llm.generate(PROMPTS, [ORDINARY, PARAMS, ORDINARY])
    assert not llm.engine.has_work
    assert [len(result.token_ids) for result in llm.generate(PROMPTS, ORDINARY)] == [10, 10, 10]


@pytest.mark.parametrize("kind", [FaultyGemm, FaultyNorm])
def test_differing_canonical_size_refuses_determinism(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Faulty]
) -> None:
    def at_two_slabs(out: Tensor, canonical: bool) -> None:
        if canonical and len(out) == 32:
            out *= 1 + 1e-5

    llm = open_faulty(tiny_llama, tmp_path, monkeypatch, at_two_slabs, kind, determinism="verify")
    with pytest.raises(DeterminismRefused, match="does not repeat its own bits"):
        llm.generate(PROMPTS, PARAMS)


def test_size_at_which_the_fused_layer_differs_is_not_certified(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(out: Tensor, canonical: bool) -> None:
        if len(out) == 1:
            out *= 1 + 1e-5

    llm = open_faulty(tiny_llama, tmp_path, monkeypatch, alone, FaultyLayer)
    assert llm.engine.certificate is not None
    assert 1 not in llm.engine.certificate.sizes
    assert 2 in llm.engine.certificate.sizes


def test_differing_sizes_are_not_certified_and_answers_stay_the_same(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_llm: LLM
) -> None:
    def at_some_sizes(out: Tensor, canonical: bool) -> None:
        if not canonical and len(out) in (1, 3, 40):
            out *= 1 + 1e-6

    llm = open_faulty(tiny_llama, tmp_path, monkeypatch, at_some_sizes)
    assert llm.engine.certificate is not None
    sizes = llm.engine.certificate.sizes
    assert not {1, 3, 40} & set(sizes)
    assert {2, 4, 16, 64} <= set(sizes)
    assert llm.engine.certificate.refusal is None
    assert same_bits(llm, auto_llm)
    assert all(result.determinism == "certified" for result in llm.generate(PROMPTS, PARAMS))


def test_model_with_a_wide_mlp_is_certified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Synthetic weights are cut, but those of a layer must fit each other."""
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    model = replace(tiny_config(), intermediate_size=4864)
    certificate = build.assemble(
        OpenedModel(EngineConfig(kernels="c", max_pass_tokens=32), model), None
    ).certificate
    assert certificate is not None and certificate.refusal is None
    assert certificate.sizes[-1] == 32 and all(check.agrees for check in certificate.checks)


def test_sizes_above_a_block_of_rows_stand_for_each_other(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of these, the first and the largest are tested."""

    def at_the_largest(out: Tensor, canonical: bool) -> None:
        if not canonical and len(out) == 256:
            out *= 1 + 1e-6

    for fault, largest in ((at_the_largest, 128), (lambda out, canonical: None, 256)):
        llm = open_faulty(tiny_llama, tmp_path / str(largest), monkeypatch, fault, max_pass_tokens=256)
        certificate = llm.engine.certificate
        assert certificate is not None and certificate.refusal is None
        assert certificate.sizes == tuple(size for size in cpu_batch_sizes(256) if size <= largest)
        tested = {size for check in certificate.checks for size in check.sizes_tested}
        assert {size for size in tested if size > 128} == {144, 256}


def test_without_certified_sizes_every_token_is_verified_and_rollbacks_happen(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auto_llm: LLM
) -> None:
    def grossly(out: Tensor, canonical: bool) -> None:
        if not canonical:
            out += np.arange(out.shape[1], dtype=np.float32) * np.float32(1e-2)

    llm = open_faulty(tiny_llama, tmp_path, monkeypatch, grossly)
    assert llm.engine.certificate is not None
    assert llm.engine.certificate.sizes == ()
    assert llm.engine.certificate.refusal is None
    assert same_bits(llm, auto_llm)
    results = llm.generate(PROMPTS, PARAMS)
    assert all(result.determinism == "verified" for result in results)
    assert sum(result.stats.rolled_back for result in results) > 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the certificates that were made, not loaded."""
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
    """Only built-in types: torch's version is a TorchVersion, which JSON encoders may refuse."""
    assert type(value) in (dict, list, tuple, str, int, float, bool, type(None)), repr(value)
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        assert_plain(one)


def test_certificate_is_made_once_and_loaded_again(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[str], auto_llm: LLM
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    first, second = start(tiny_llama), start(tiny_llama)
    assert first.engine.certificate is not None
    assert_plain(first.engine.certificate.as_dict())
    assert len(counted) == 1
    assert first.engine.certificate == second.engine.certificate == load_certificate(counted[0])
    assert same_bits(first, second)
    start(tiny_llama, max_pass_tokens=48)  # another subject, another certificate
    start(tiny_llama, dtype="bf16")
    assert len(set(counted)) == len(counted) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: [],
        lambda fields: {**fields, "sizes": [True, "x"]},
        lambda fields: {**fields, "subject": {}},
        lambda fields: {**fields, "key": "0"},
    ],
)
def test_certificate_of_another_form_or_subject_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, auto_llm: LLM
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    certificate = auto_llm.engine.certificate
    assert certificate is not None
    save_certificate(certificate)
    path = tmp_path / "certificates" / f"{certificate.key}.json"
    assert load_certificate(certificate.key) == certificate
    content = read_checked(path)
    assert content is not None
    write_checked(path, json.dumps(change(json.loads(content))).encode())
    assert load_certificate(certificate.key) is None


def test_unwritable_certificate_folder_logs_a_warning(
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


def test_no_temporary_files_are_left(cache_dir: Path, auto_llm: LLM) -> None:
    files = [path for path in (cache_dir / "certificates").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
    assert os.environ["HOLDFAST_CACHE_DIR"] == str(cache_dir)


def test_digest_ignores_seconds_only(auto_llm: LLM) -> None:
    certificate = auto_llm.engine.certificate
    assert certificate is not None
    assert certificate_key(certificate.subject) == certificate.key
    assert replace(certificate, seconds=99.0).digest == certificate.digest
    assert replace(certificate, sizes=(1,)).digest != certificate.digest


def test_certificate_key_depends_on_split_n(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, same, other = (
        open_faulty(tiny_llama, tmp_path, monkeypatch, first, SplitN).engine.certificate
        for first in (16, 16, 32)
    )
    assert one is not None and other is not None and one == same
    assert one.key != other.key
    split_n = cast(dict[str, list[list[int]]], one.subject["cuts"])
    assert split_n and all(found == [[8, 16]] for found in split_n.values())


def test_chosen_recipes_reach_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = (
        GemmRecipe("gate_up", 28672, 4096, 0, (256,), 1, 1, (), ((256, 16128), (448, 21504))),
        GemmRecipe("down", 4096, 14336, 2, (256,), 1, 4),
    )
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(build, "uses_triton", lambda *given: True)
    monkeypatch.setattr(choose, "choose_recipes", lambda *given: chosen)
    monkeypatch.setattr(build, "open_backend", lambda dtype, **given: opened.append(given))
    setup = SimpleNamespace(
        config=EngineConfig(),
        model=None,
        dtype=torch.bfloat16,
        device=HOST,
        settings=SimpleNamespace(threads=1),
        show=build._show_nothing,
    )
    build._Builder.open_backend(cast(Any, setup))
    (given,) = opened
    assert given["split_k"] == {(28672, 4096): 0, (4096, 14336): 2}
    assert given["split_n"] == {(28672, 4096): {256: 16128, 448: 21504}}
