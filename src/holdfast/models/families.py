"""Which tensors a decoder of a given configuration consists of, under their Hugging Face names.

The list is complete and exact: a checkpoint that has these tensors in these shapes can be loaded, one that
lacks any is refused before a single weight is read.
"""

from collections.abc import Callable, Mapping

from holdfast.errors import BadWeights
from holdfast.models.config import DecoderConfig

Shape = tuple[int, ...]

_NAMED_IN_ERROR = 6


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor, in the order a pass needs them. Tied embeddings have no `lm_head`."""
    embedding = (config.vocab_size, config.hidden_size)
    tensors: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    for layer in range(config.num_layers):
        for name, shape in _layer_tensors(config).items():
            tensors[f"model.layers.{layer}.{name}"] = shape
    tensors["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = embedding
    return tensors


def _layer_tensors(config: DecoderConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears: tuple[tuple[str, Shape, bool], ...] = (
        ("self_attn.q_proj", (queries, hidden), config.qkv_bias),
        ("self_attn.k_proj", (keys, hidden), config.qkv_bias),
        ("self_attn.v_proj", (keys, hidden), config.qkv_bias),
        ("self_attn.o_proj", (hidden, queries), config.o_bias),
        ("mlp.gate_proj", (inner, hidden), config.mlp_bias),
        ("mlp.up_proj", (inner, hidden), config.mlp_bias),
        ("mlp.down_proj", (hidden, inner), config.mlp_bias),
    )
    tensors: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    for name, shape, has_bias in linears:
        tensors[f"{name}.weight"] = shape
        if has_bias:
            tensors[f"{name}.bias"] = shape[:1]
    if config.qk_norm:
        tensors["self_attn.q_norm.weight"] = tensors["self_attn.k_norm.weight"] = (config.head_dim,)
    tensors["post_attention_layernorm.weight"] = (hidden,)
    return tensors


def require_tensors(
    expected: Mapping[str, Shape], find_shape: Callable[[str], Shape | None], where: str
) -> None:
    """Raise one error that names every kind of disagreement between the configuration and the weights."""
    missing: list[str] = []
    misshaped: list[str] = []
    for name, shape in expected.items():
        found = find_shape(name)
        if found is None:
            missing.append(name)
        elif found != shape:
            misshaped.append(f"{name} {list(found)} instead of {list(shape)}")
    complaints = [
        f"{what}: {', '.join(names[:_NAMED_IN_ERROR])}{_and_more(names)}"
        for what, names in (("missing", missing), ("of another shape", misshaped))
        if names
    ]
    if complaints:
        raise BadWeights(
            f"{where} does not hold the model its configuration describes; {'; '.join(complaints)}"
        )


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - _NAMED_IN_ERROR} more" if len(names) > _NAMED_IN_ERROR else ""
