"""Checks an engine's settings and its model's files without torch and without reading weights.

A wrong setting or a missing model is answered at once: importing torch takes seconds, loading a
model up to minutes. `open_model` opens what the builder needs anyway, so nothing is done twice.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from holdfast.core.garbage_collection import paused_collection
from holdfast.core.sampling_params import RestOfContext, SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.input_processor import InputProcessor, Prompt, RequestLimits
from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
from holdfast.errors import ConfigError, PromptTooLong
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig
from holdfast.models.gguf.checkpoint import GgufCheckpoint
from holdfast.models.locate import locate
from holdfast.models.model_files import ModelFiles
from holdfast.models.safetensors import read_config
from holdfast.models.shapes import published_config
from holdfast.structured.compiler import GrammarCompiler
from holdfast.text.tokenizer import Tokenizer, byte_tokenizer, open_tokenizer
from holdfast.thinking.config import ThinkingConfig, read_thinking, thinking_folder
from holdfast.worker.device import require_gpu

_MAX_DEFAULT_CONTEXT = 1 << 20
_MAX_TABLE_BYTES = 1 << 30  # of the cosines and sines of rotary positions
DETERMINISM_OFF = "this engine runs with determinism off; start it with determinism auto or verify"


@dataclass(frozen=True)
class OpenedModel:
    """A model's configuration and files, opened and checked. checkpoint is None for random weights. files: as
    they were before they were opened."""

    config: EngineConfig
    model: DecoderConfig
    checkpoint: Checkpoint | None = None
    files: ModelFiles = field(default_factory=ModelFiles)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; for random weights without one, a token for each byte."""
        with paused_collection():
            return self._open_tokenizer()

    def _open_tokenizer(self) -> Tokenizer:
        config = self.config
        folder = Path(config.model or "").expanduser()
        if isinstance(self.checkpoint, GgufCheckpoint):
            file = self.checkpoint.file
            tokenizer = open_tokenizer(self.checkpoint.path, metadata=file.metadata)
            file.forget_arrays("tokenizer.")  # the tokenizer has them now
        elif self.checkpoint is not None:
            tokenizer = open_tokenizer(self.checkpoint.path)
        elif config.model and (folder / "tokenizer.json").is_file():
            tokenizer = open_tokenizer(folder)
        else:
            tokenizer = byte_tokenizer()
        controls = config.allow_special_tokens_in_content
        return tokenizer.adapted(config.chat_template, controls_in_content=controls)

    @cached_property
    def chat_tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(self.tokenizer)

    @cached_property
    def thinking_folder(self) -> Path | None:
        """The folder of T and C, if the model thinks."""
        return None if self.checkpoint is None else thinking_folder(self.config.model, self.checkpoint)

    @cached_property
    def thinking(self) -> ThinkingConfig | None:
        return None if self.thinking_folder is None else read_thinking(self.thinking_folder, self.model)

    @cached_property
    def limits(self) -> RequestLimits:
        """What the model allows a request. A certificate may add a refusal."""
        return RequestLimits(
            vocab_size=self.model.vocab_size,
            max_model_len=context_len(self.config, self.model),
            eos_ids=frozenset(self.model.eos_token_ids) | self.tokenizer.eos_token_ids,
            refusal=DETERMINISM_OFF if self.config.determinism == "off" else None,
            thinking=self.thinking,
            defaults=self.config.request_defaults,
            hidden_size=self.model.hidden_size,
        )

    def check_request(self, prompt: Prompt, params: SamplingParams) -> None:
        """Raise what the engine would raise for this request, but for its grammar and the memory of
        the KV cache.
        """
        limits = self.limits
        grammars = GrammarCompiler(self.tokenizer, limits.vocab_size, limits.eos_ids)
        processor = InputProcessor(self.tokenizer, limits, grammars, lambda length: None)
        processor.check(processor.read(prompt, replace(params, structured=None)))

    def check_params(self, params: SamplingParams) -> None:
        """Do the same for a prompt that is not known yet."""
        room = self.limits.max_model_len
        if params.max_tokens >= room and not isinstance(params.max_tokens, RestOfContext):
            raise PromptTooLong(
                f"max_tokens is {params.max_tokens}, and the context has {room} tokens for prompt and answer together; "
                "lower max_tokens"
            )
        self.check_request([0], params)


def open_model(config: EngineConfig) -> OpenedModel:
    """Check the settings, find the model and open its files.

    Raises `ConfigError` or `ModelError`. The tokenizer is opened on first use.
    """
    require_gpu(config.device, config.kernels)
    if config.receipt_key is not None:
        from holdfast.receipts.signing import SigningKey

        SigningKey.read(Path(config.receipt_key).expanduser())
    if config.load_format == "dummy":
        opened = OpenedModel(config, dummy_config(config.model))
    else:
        located = locate(config.model)
        files = ModelFiles.of(*(one for one in (located.path, located.adapter) if one is not None))
        with paused_collection():
            checkpoint = open_checkpoint(located.path)
        opened = OpenedModel(config, checkpoint.config, checkpoint, files)
    context_len(config, opened.model)
    _ = opened.thinking
    return opened


def context_len(config: EngineConfig, model: DecoderConfig) -> int:
    """Return the configured context, or the model's; a larger one than `_MAX_DEFAULT_CONTEXT` only if it is
    configured. The tables of rotary positions are computed for all of it at once.
    """
    longest = model.max_position_embeddings
    if config.max_model_len is None:
        return min(longest, _MAX_DEFAULT_CONTEXT, _MAX_TABLE_BYTES // (4 * model.head_dim))
    if config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, the model's context is {longest}; lower it"
        )
    return config.max_model_len


def dummy_config(model: str | None) -> DecoderConfig:
    """Return the shape of random weights: a folder with a config.json or the name of a published shape."""
    if model is None:
        raise ConfigError(
            "load_format dummy needs a model: a folder with a config.json, or a name such as llama-3.1-8b"
        )
    folder = Path(model).expanduser()
    return read_config(folder) if folder.is_dir() else published_config(model)
