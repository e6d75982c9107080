"""Hugging Face generate in the same process, on the weights that Holdfast loaded."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from holdfast.models.checkpoint import Checkpoint


class HuggingFace:
    """A transformers Llama with the weights of an open checkpoint."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        import transformers

        config = checkpoint.config
        assert config.family == "llama" and config.rope_scaling is None, (
            "the comparison supports plain Llama models only"
        )
        described = transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tie_word_embeddings,
        )
        with torch.device("meta"):
            model: Any = transformers.LlamaForCausalLM(described)
        model = model.to(dtype).to_empty(device="cpu")
        model.load_state_dict(
            {name: checkpoint.tensor(name, dtype) for name in checkpoint.names()}, strict=False
        )
        model.tie_weights()
        rotary = model.model.rotary_emb
        rotary.inv_freq = 1.0 / config.rope_theta ** (
            torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        )
        rotary.original_inv_freq = rotary.inv_freq
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        self._model = model.eval()

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of one greedy batch. All prompts have the same length."""
        ids = torch.tensor(prompts)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
            )
        assert out.shape[1] == ids.shape[1] + num_tokens
        return time.perf_counter() - started
