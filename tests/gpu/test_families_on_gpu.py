"""Models of every family on a GPU: near transformers in fp32, and one answer in bf16 whatever else runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engines import HAS_GPU, default_device
from holdfast.bench.determinism import open_plain_engine
from holdfast.bench.load import LoadScale, ProbeRequest
from holdfast.bench.stress import stress_test
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from support.tiny import VOCAB_SIZE, tiny_model

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
HEAD = {"head_dim": 64}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 128,
}
SPACE = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 2, "mamba_expand": 2}
SPARSE = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 96}
MODELS: dict[str, dict[str, Any]] = {
    "granite": {},
    "smollm3": {},
    "phi3": {},
    "olmo2": {},
    "gemma2": HEAD,
    "gemma3_text": HEAD | {"tie_word_embeddings": True},
    "cohere2": {},
    "mixtral": {"intermediate_size": 320},
    "qwen2_moe": {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 96},
    "qwen3_moe": HEAD | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 64},
    "olmoe": {"intermediate_size": 128},
    # The published limits of SwiGLU: older transformers read no others.
    "gpt_oss": HEAD
    | {"intermediate_size": 192, "num_local_experts": 32, "num_experts_per_tok": 4}
    | {"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    "lfm2": {},
    "lfm2_moe": SPARSE,
    "qwen3_next": HEAD | DELTA | SPARSE | {"shared_expert_intermediate_size": 128},
    "qwen3_5_text": HEAD | DELTA,
    "qwen3_5_moe_text": HEAD | DELTA | SPARSE | {"shared_expert_intermediate_size": 128},
    # One group, as published: older transformers do not read several.
    "granitemoehybrid": SPACE | {"mamba_n_groups": 1, "shared_intermediate_size": 128},
    "falcon_h1": HEAD | SPACE | {"mamba_d_ssm": 512},
    "nemotron_h": HEAD
    | {
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "ssm_state_size": 64,
        "n_groups": 1,
        "n_routed_experts": 32,
    }
    | {"num_experts_per_tok": 4, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 128},
    "olmo_hybrid": DELTA,
}
SCALE = LoadScale(max_background=20, max_prompt_len=300, max_tokens=16, fault_rates=(0.0, 0.1))
NUM_RUNS = 6 if HAS_GPU else 2


def _folder(tmp_path: Path, family: str, **changes: Any) -> Path:
    if family in ("nemotron_h", "olmo_hybrid"):
        pytest.importorskip(f"transformers.models.{family}", reason="an older transformers")
    return tiny_model(tmp_path, family, **(SIZES | MODELS[family] | changes))


def _prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()


def _open(folder: Path, dtype: str) -> LLM:
    settings: dict[str, Any] = {"max_num_seqs": 32, "kv_memory": "256MiB", "max_model_len": 1024}
    return LLM(str(folder), dtype=dtype, device=default_device().type, **settings)


@pytest.mark.parametrize("family", MODELS)
def test_tokens_and_logprobs_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path, family, std=0.1)
    llm = _open(folder, "fp32")
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **plain).eval()
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=3, deterministic=True)
    for result in llm.generate([_prompt(length) for length in (1, 50, 300)], params):
        prompt, answer = list(result.prompt_token_ids), list(result.token_ids)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer[:-1]]), use_cache=False).logits[0]
        expected = logits[len(prompt) - 1 :].log_softmax(-1)
        assert expected.argmax(-1).tolist() == answer
        assert result.logprobs is not None
        for row, reported in enumerate(result.logprobs):
            assert abs(reported.logprob - expected[row, reported.token_id].item()) < 1e-4


@pytest.mark.parametrize("family", MODELS)
def test_one_answer_certified_and_verified(family: str, tmp_path: Path) -> None:
    """Loads of 0 to 20 other requests: an expert gets none to all of their tokens."""
    engine = _open(_folder(tmp_path, family), "bf16").engine
    assert engine.limits.refusal is None
    if HAS_GPU:
        assert engine.scheduler.config.one_pass_suffices
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, logprobs=2, deterministic=True)
    probe = ProbeRequest(tuple(_prompt(90)), params)
    certified = stress_test(engine, probe, ("auto",), NUM_RUNS, scale=SCALE)
    verified = stress_test(open_plain_engine(engine), probe, ("verify",), NUM_RUNS, scale=SCALE, seed=1)
    assert certified.num_distinct == verified.num_distinct == 1
    assert certified.results.keys() == verified.results.keys()
    assert certified.num_revocations == 0
