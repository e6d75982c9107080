"""Build the model and its tokenizer: from scratch, or from a checkpoint, plain or thinking."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, InvalidRequest, TemplateError
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.families import FAMILIES
from holdfast.models.gguf.names import gguf_fields
from holdfast.models.gguf.reader import GgufFile
from holdfast.models.locate import locate
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.gguf_tokenizer import read_gguf_tokenizer
from holdfast.text.tokenizer import Tokenizer as TextTokenizer
from holdfast.text.tokenizer import open_tokenizer
from holdfast.thinking.config import MAX_RESET, ThinkingConfig, read_thinking, thinking_folder
from holdfast.thinking.log import find_resets
from holdfast.thinking.weights import read_thinking_weights
from holdfast_thinking.data.text_examples import ChatFrame
from holdfast_thinking.model.model import ThinkingModel, fresh_model, start_blocks_from_backbone
from holdfast_thinking.model.tokenizer import END, EOS, SPECIAL, START, build_tokenizer
from holdfast_thinking.settings import TrainingSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class BuiltModel:
    """A model before training. fields: the config.json of the exported folder."""

    model: ThinkingModel
    tokenizer: "Tokenizer"
    fields: dict[str, Any]
    eos_id: int
    frame: ChatFrame | None = None


def build(settings: TrainingSettings, texts: list[str]) -> BuiltModel:
    """texts: the vocabulary of a tokenizer made from scratch."""
    return (
        _from_scratch(settings, texts)
        if settings.backbone is None
        else _from_backbone(settings, settings.backbone)
    )


def config_fields(settings: TrainingSettings, vocab_size: int, eos_id: int) -> dict[str, Any]:
    size = settings.size
    return {
        **_family_fields(settings.window),
        "vocab_size": vocab_size,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": settings.context,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": eos_id,
        "torch_dtype": settings.dtype,
    }


def _family_fields(window: int | None) -> dict[str, Any]:
    if window is None:
        return {"architectures": [FAMILIES["llama"].architecture], "model_type": "llama"}
    return {
        "architectures": [FAMILIES["mistral"].architecture],
        "model_type": "mistral",
        "sliding_window": window,
    }


def _from_scratch(settings: TrainingSettings, texts: list[str]) -> BuiltModel:
    tokenizer = build_tokenizer(texts)
    eos_id, start_id, end_id = (SPECIAL.index(token) for token in (EOS, START, END))
    fields = config_fields(settings, tokenizer.get_vocab_size(with_added_tokens=True), eos_id)
    config = parse_config(fields)
    thinking = _thinking(settings, config, start_id, end_id)
    return BuiltModel(
        fresh_model(config, thinking, settings.context, settings.seed), tokenizer, fields, eos_id
    )


def _from_backbone(settings: TrainingSettings, name: str) -> BuiltModel:
    """Start and end thoughts with the backbone's tokens. T and C, if any, are trained further."""
    checkpoint = open_checkpoint(locate(name).path)
    config = checkpoint.config
    if not config.is_llama_like:
        raise ConfigError(
            f"{name} is a {config.family} model; training starts from Llama, Mistral, Qwen2 or Qwen3 models"
        )
    fields = _backbone_fields(checkpoint, settings.dtype)
    if settings.window is not None:
        fields, config = _with_window(fields, config, settings.window, name)
    if not config.eos_token_ids:
        raise ConfigError(f"{name} names no eos_token_id; an answer and a thought must be able to end")
    end_id = config.eos_token_ids[0]
    start_id = end_id if config.bos_token_id is None else config.bos_token_id
    opened = open_tokenizer(checkpoint.path)
    resets = message_start(opened) if settings.chat and settings.carry else ()
    thinking = _thinking(settings, config, start_id, end_id, resets)
    folder = thinking_folder(name, checkpoint)
    trained = None if thinking is None or folder is None else read_thinking(folder, config)
    if thinking is not None and trained is not None:
        thinking = _like(thinking, trained, name)
    model = fresh_model(
        config, thinking, min(settings.context, config.max_position_embeddings), settings.seed
    )
    model.load_tensors({name: checkpoint.tensor(name) for name in checkpoint.names()})
    if folder is not None and trained is not None:
        model.load_tensors(read_thinking_weights(folder, trained, config))
    elif thinking is not None:
        start_blocks_from_backbone(model)
    if settings.adapter:
        model.freeze_backbone()
    frame = chat_frame(opened, name) if settings.chat else None
    return BuiltModel(model, open_backend(checkpoint.path), fields, end_id, frame)


def open_backend(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    if path.is_file():
        return read_gguf_tokenizer(GgufFile(path).metadata).backend
    if not path.joinpath("tokenizer.json").is_file():
        raise ConfigError(f"{path} has no tokenizer.json, which the tasks need")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _backbone_fields(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    config, path = checkpoint.config, checkpoint.path
    if path.is_dir():
        fields = json.loads(path.joinpath("config.json").read_text(encoding="utf-8"))
        fields.pop("dtype", None)
        return {**fields, "torch_dtype": dtype}
    known = {**gguf_fields(GgufFile(path)), "attention_bias": config.qkv_bias}
    if parse_config(known) != config:
        raise ConfigError(
            f"{path} has rope factors or biases that its metadata do not name; convert it to safetensors first"
        )
    return {**known, "architectures": [FAMILIES[config.family].architecture], "torch_dtype": dtype}


def _with_window(
    fields: dict[str, Any], config: DecoderConfig, window: int, name: str
) -> tuple[dict[str, Any], DecoderConfig]:
    """Return the backbone with a sliding window in every layer: a Llama becomes a Mistral with the same weights."""
    has_biases = config.qkv_bias or config.o_bias or config.mlp_bias
    if config.family not in ("llama", "mistral") or has_biases:
        raise ConfigError(
            f"{name} is a {config.family} model{' with biases' * has_biases}; a window can be given to Llama and Mistral "
            "models without biases"
        )
    same = {
        key: value
        for key, value in fields.items()
        if key not in ("attention_bias", "mlp_bias", "layer_types")
    }
    windows = (window,) * config.num_layers
    return {**same, **_family_fields(window)}, replace(config, family="mistral", layer_windows=windows)


def chat_frame(tokenizer: TextTokenizer, name: str) -> ChatFrame:
    """Return the text around a message. Without `between` if a conversation is written otherwise than its messages."""
    if tokenizer.chat_template is None:
        raise ConfigError(f"{name} has no chat template; train it without chat")
    single = _render(tokenizer, "user")
    if single is None:
        raise ConfigError(
            f"the chat template of {name} does not write a message as it is; train it without chat"
        )
    before, after = single
    conversation = _render(tokenizer, "user", "assistant", "user")
    is_alike = conversation is not None and conversation[:2] == [before, after] and conversation[3] == after
    return ChatFrame(before, after, conversation[2] if conversation is not None and is_alike else "")


def message_start(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the tokens with which the second message of a conversation begins, without white space at the end; () if
    the chat template has no conversations, or answers begin with the same."""
    parts = None if tokenizer.chat_template is None else _render(tokenizer, "user", "assistant", "user")
    if parts is None:
        return ()
    to_answer, found, to_next = tokenizer.encode_all([parts[1], parts[2].rstrip(), parts[3]])
    is_unlike = not find_resets(to_answer, found) and not find_resets(to_next, found)
    return tuple(found) if is_unlike and len(found) <= MAX_RESET else ()


def _render(tokenizer: TextTokenizer, *roles: str) -> list[str] | None:
    """Return the chat template around messages of these roles; None if it refuses them, or changes them."""
    template = ChatTemplate.of(tokenizer)
    mark = "\N{OBJECT REPLACEMENT CHARACTER}"
    try:
        parts = template.render([{"role": role, "content": mark} for role in roles]).split(mark)
    except (InvalidRequest, TemplateError):
        if len(roles) == 1:
            raise
        return None
    finally:
        template.close()
    return parts if len(parts) == len(roles) + 1 else None


def _thinking(
    settings: TrainingSettings,
    config: DecoderConfig,
    start_id: int,
    end_id: int,
    reset_ids: tuple[int, ...] = (),
) -> ThinkingConfig | None:
    if settings.form != "thinking":
        return None
    return ThinkingConfig(
        chunk=settings.chunk,
        l_in=settings.l_in,
        l_out=max(settings.l_in, config.num_layers - 1) if settings.l_out is None else settings.l_out,
        max_thought=settings.max_thought,
        start_id=start_id,
        end_id=end_id,
        while_answering=settings.while_answering,
        carry=settings.carry,
        reset_ids=reset_ids,
        settle=settings.settle,
    ).fits(config)


def _like(wanted: ThinkingConfig, trained: ThinkingConfig, name: str) -> ThinkingConfig:
    """The configuration of the model `name`, whose T and C are trained further, with as long thoughts as wanted,
    where messages begin, and settled or not. Raises `ConfigError` where they would have to learn something else."""
    wanted = replace(wanted, start_id=trained.start_id, end_id=trained.end_id)
    for key, value in asdict(trained).items():
        if key not in ("max_thought", "reset_ids", "settle") and getattr(wanted, key) != value:
            raise ConfigError(
                f"{key} is {getattr(wanted, key)}, and {name} was trained with {value}; train it further with the same"
            )
    return wanted
