"""Every family and number format from GGUF, against the same file read and dequantised by
transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.engine.llm import LLM
from parity.compare import assert_parity, open_reference
from support.tiny import VOCAB_SIZE, tiny_gguf

# transformers takes heads of 128 for granted in a qwen3 GGUF; K formats need rows of 256.
QWEN3 = {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "std": 0.1}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama-F32": ("llama", "F32", {}),
    "llama-F16-tied": ("llama", "F16", {"tie_word_embeddings": True}),
    "llama-Q8_0": ("llama", "Q8_0", {}),
    "llama-Q4_0": ("llama", "Q4_0", {}),
    "llama-Q4_1": ("llama", "Q4_1", {}),
    "llama-Q5_0": ("llama", "Q5_0", {}),
    "llama-Q5_1": ("llama", "Q5_1", {}),
    "llama-Q4_K": ("llama", "Q4_K", WIDE),
    "llama-Q5_K": ("llama", "Q5_K", WIDE),
    "llama-Q6_K": ("llama", "Q6_K", WIDE),
    "mistral-BF16": ("mistral", "BF16", {}),
    "qwen2-F32": ("qwen2", "F32", {}),
    "qwen2-Q8_0-tied": ("qwen2", "Q8_0", {"tie_word_embeddings": True}),
    "qwen3-F16": ("qwen3", "F16", QWEN3),
    "qwen3-Q4_0": ("qwen3", "Q4_0", QWEN3),
}
LIBRARY_TOO = {
    "llama-Q4_0",
    "mistral-BF16",
    "qwen2-F32",
    "qwen3-F16",
}  # the numbers are the same from here on


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logits_match_transformers(case: str, tmp_path: Path) -> None:
    family, quant, changes = CASES[case]
    path = tiny_gguf(tmp_path / "model.gguf", family, quant, **changes)
    model = open_reference(path)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (2, 70)]
    assert_parity(path, model, prompts, "c", max_tokens=24)
    if case in LIBRARY_TOO:
        assert_parity(path, model, prompts[:1], "torch", max_tokens=8)


def test_text_uses_the_gguf_tokenizer(tmp_path: Path) -> None:
    llm = LLM(str(tiny_gguf(tmp_path / "model.gguf")), dtype="fp32", max_pass_tokens=64)
    result = llm.generate(["the quick fox"])[0]
    assert llm.engine.tokenizer.decode(list(result.prompt_token_ids)) == "the quick fox"
