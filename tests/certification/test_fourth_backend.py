"""Another backend, under a name that nothing knows: it says what it does by its capabilities."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.engine.start import builder as build
from holdfast.numerics.backends.select_backend import open_backend


class Renamed:
    """The torch backend under another name. It also claims to certify its head, as a GPU's does."""

    def __init__(self, inner: Any, **claims: bool) -> None:
        self._inner, self._claims = inner, claims
        self.recipe = replace(inner.recipe, path="fourth")
        self.can = replace(inner.can, **claims)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def in_fp32(self) -> "Renamed":
        inner = self._inner.in_fp32()
        return self if inner is self._inner else Renamed(inner, **self._claims)


CLAIMS = dict.fromkeys(("rounds_in_gemm", "certifies_head", "certifies_experts"), True)


@pytest.mark.parametrize(
    ("dtype", "claims"),
    [
        pytest.param("fp32", {}, id="as torch"),
        pytest.param("bf16", CLAIMS, id="as a GPU"),
        pytest.param("bf16", {}, id="as torch in bf16", marks=pytest.mark.long),
        pytest.param("fp32", CLAIMS, id="as a GPU in fp32", marks=pytest.mark.long),
    ],
)
def test_it_is_certified_and_answers_as_torch_does(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, claims: dict[str, bool]
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    params = SamplingParams(max_tokens=8, temperature=0.9, seed=3, deterministic=True, logprobs=1)
    prompts = [[5, 6, 7], [9] * 30, [11, 12]]
    settings = {"dtype": dtype, "kernels": "torch", "max_pass_tokens": 32, "max_num_seqs": 4}

    def answers() -> tuple[Any, Any, Any]:
        with LLM(str(tiny_llama), certification="startup", **settings) as llm:
            certificate, parts = llm.engine.certificate, llm.engine.fingerprint.parts
            assert certificate is not None and certificate.refusal is None
            results = llm.generate(prompts, params)
            return certificate, parts, [(one.token_ids, one.logprobs) for one in results]

    by_torch, parts, expected = answers()
    monkeypatch.setattr(build, "open_backend", lambda *a, **k: Renamed(open_backend(*a, **k), **claims))
    certificate, renamed_parts, found = answers()
    assert found == expected
    assert renamed_parts["recipe"] == {**parts["recipe"], "path": "fourth"}
    # The canary of a GEMM that rounds is that of the rounded result, which torch gives where the CPU has bf16.
    others = {"recipe"} | ({"canary"} if claims else set())
    assert {name for name in parts if renamed_parts[name] != parts[name]} <= others
    if not claims:
        assert (certificate.sizes, certificate.checks) == (by_torch.sizes, by_torch.checks)
    else:  # its head and its rounded GEMMs are tested in fast form, too
        assert certificate.key != by_torch.key
        more = sum(one.num_comparisons for one in certificate.checks)
        assert more > sum(one.num_comparisons for one in by_torch.checks)
