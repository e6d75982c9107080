"""Tiny random models on disk: `tiny_model(folder, "qwen3")` is a folder that both Holdfast and
transformers open.

The weights are large enough for varied logits and small enough for fp32 to agree to 1e-4. Biases
and norms are random, too, so that forgetting one changes the result. The tokenizer is a byte-level
BPE whose vocabulary fits the model's.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.dummy import TINY_EOS, DummyCheckpoint, tiny_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EOS, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ("<|end|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 320
HIDDEN_SIZE = 64
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "granite": "Granite",
    "smollm3": "SmolLM3",
    "phi3": "Phi3",
    "olmo2": "Olmo2",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "cohere2": "Cohere2",
    "mixtral": "Mixtral",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "olmoe": "Olmoe",
    "gpt_oss": "GptOss",
    "lfm2": "Lfm2",
    "granitemoehybrid": "GraniteMoeHybrid",
    "falcon_h1": "FalconH1",
    "nemotron_h": "NemotronH",
    "olmo_hybrid": "OlmoHybrid",
    "lfm2_moe": "Lfm2Moe",
    "qwen3_next": "Qwen3Next",
    "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe",
}
FAMILIES = tuple(_CLASSES)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": EOS,
    "bos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_GEMMA = {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 40, "num_hidden_layers": 3}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
_DELTA = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_SPACE = {
    "num_hidden_layers": 3,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_head": "auto",
}
FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 32},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "logits_scaling": 2.5,
    },
    "smollm3": {"num_hidden_layers": 3, "no_rope_layer_interval": 2},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
    "gemma3_text": _GEMMA | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "cohere2": {
        "num_hidden_layers": 3,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "logit_scale": 0.5,
    },
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2_moe": _EXPERTS
    | {"num_hidden_layers": 3, "mlp_only_layers": [1], "shared_expert_intermediate_size": 40},
    "qwen3_moe": _EXPERTS | {"head_dim": 32, "norm_topk_prob": True},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 3},
    "gpt_oss": {
        "num_hidden_layers": 3,
        "head_dim": 32,
        "sliding_window": 20,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 1.5,  # small enough to limit these weights
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
}
FAMILY_SIZES |= {
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "falcon_h1": {
        **{key: value for key, value in _SPACE.items() if key != "layer_types"},
        "mamba_d_ssm": 96,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.3,
        "mlp_multipliers": [0.7, 1.3],
        "key_multiplier": 0.6,
        "attention_out_multiplier": 1.1,
        "attention_in_multiplier": 1.2,
        "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 1.3],
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
    },
    "granitemoehybrid": _SPACE
    | {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 40},
    "lfm2_moe": _EXPERTS
    | {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
    },
    "nemotron_h": {
        "num_hidden_layers": None,
        "layers_block_type": [
            "linear_attention",
            "moe",
            "linear_attention",
            "full_attention",
            "mlp",
            "linear_attention",
            "moe",
        ],
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 16,
        "time_step_min": 1e-9,  # in prefill alone, the reference takes it for the least step
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 40,
        "routed_scaling_factor": 1.5,
    },
    "olmo_hybrid": {
        "num_hidden_layers": 3,
        "layer_types": _DELTA["layer_types"],
        "linear_num_value_heads": 8,
    },
    "qwen3_next": _DELTA | _EXPERTS | {"mlp_only_layers": [1], "shared_expert_intermediate_size": 40},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 40},
}
LONG_PHI: dict[str, Any] = {  # a phi3 model with longrope and partial rotary positions
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.125 * i for i in range(6)],
        "long_factor": [2.0 + 0.25 * i for i in range(6)],
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 0.75,
    },
}
_CORPUS = ("the quick brown fox jumps over the lazy dog, and then the dog sleeps", "a b c 1 2 3\n\n")


def tiny_engine(
    config: EngineConfig, *, near_ties: bool = False, seed: int = 0, eos_id: int = TINY_EOS
) -> Engine:
    """An engine without files: random weights with a large deviation, so that tokens vary.

    With near_ties every token has another one with nearly the same logit.
    """
    model = tiny_config(eos_token_id=eos_id)
    checkpoint = DummyCheckpoint(model, seed=seed, deviation=0.25, twins=near_ties)
    return assemble(OpenedModel(config, model), checkpoint)


def tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 7,
    std: float = 0.2,
    sharded: bool = False,
    **overrides: Any,
) -> Path:
    """A model folder. `overrides` are fields of transformers' configuration."""
    model = random_model(family, seed=seed, std=std, **overrides)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="40KB" if sharded else "1GB")
    write_tokenizer(folder)
    return folder


def tiny_mxfp4(folder: Path, **overrides: Any) -> Path:
    """A gpt_oss model whose experts are random MXFP4 blocks, as its publisher stores them."""
    import torch
    from safetensors.torch import load_file, save_file

    tiny_model(folder, "gpt_oss", **overrides)
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(4)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "experts.down_proj"))]:
        num_experts, inputs, outputs = tensors.pop(name).shape
        blocks = (num_experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*blocks, 16), generator=generator).byte()
        tensors[f"{name}_scales"] = torch.randint(122, 126, blocks, generator=generator).byte()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    fields = json.loads(file.read_text()) | {"quantization_config": quantization}
    file.write_text(json.dumps(fields), encoding="utf-8")
    return folder


def tiny_gguf(
    path: Path,
    family: str = "llama",
    quant: str = "F32",
    *,
    seed: int = 7,
    std: float = 0.2,
    experts: Any = "together",
    **overrides: Any,
) -> Path:
    """The same model as one GGUF file, its tokenizer and chat template inside."""
    from models.gguf_writer import write_gguf  # gguf is not installed everywhere

    path.parent.mkdir(parents=True, exist_ok=True)
    model = random_model(family, seed=seed, std=std, **overrides)
    return write_gguf(path, model, quant, metadata=_gguf_tokenizer(), experts=experts)


def random_model(family: str, *, seed: int = 7, std: float = 0.2, **overrides: Any) -> Any:
    """A transformers model whose every parameter is random."""
    import torch
    import transformers

    config = random_config(family, **overrides)
    model = getattr(transformers, _CLASSES[family] + "ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    biases = (
        (name, one)
        for name, one in model.named_buffers()
        if name.endswith(("expert_bias", "correction_bias"))
    )
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *biases):
            noise = torch.randn(parameter.shape, generator=generator) * std
            parameter.copy_(1 + noise if "norm" in name else noise)
    return model


def random_config(family: str, **overrides: Any) -> Any:
    """A transformers configuration."""
    import transformers

    sizes = deepcopy(SIZES | FAMILY_SIZES.get(family, {}) | overrides)  # a test may change its model
    config_class = _CLASSES[family] + ("TextConfig" if family.endswith("_text") else "Config")
    return getattr(transformers, config_class)(**sizes)


def write_tokenizer(folder: Path) -> None:
    folder.joinpath("tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    config = {"eos_token": SPECIAL_TOKENS[EOS], "chat_template": CHAT_TEMPLATE}
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@cache
def _tokenizer_json() -> str:
    return train_tokenizer(SPECIAL_TOKENS, _CORPUS).to_str()


def train_tokenizer(special: Sequence[str], corpus: Sequence[str]) -> "Tokenizer":
    """Train a byte-level BPE of at most 300 tokens. The special ones are the first."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers.models import BPE

    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(list(corpus) * 4, trainer)
    return backend


def _gguf_tokenizer() -> dict[str, Any]:
    model = json.loads(_tokenizer_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
