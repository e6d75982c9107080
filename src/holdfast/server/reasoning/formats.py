"""The formats in which models write their thinking.

    qwen3           <think> ... </think>, at the beginning of the answer
    deepseek_r1     the same, and the answer begins inside it even if the prompt does not say so
    mistral         [THINK] ... [/THINK]
    openai_gptoss   messages of the channel analysis (`harmony`), for gpt-oss

A format is data. The names are vLLM's.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.text.tokenizer import Tokenizer  # slow to import, and the options only need names

ReasoningParserName = Literal["auto", "none", "qwen3", "deepseek_r1", "mistral", "openai_gptoss"]


@dataclass(frozen=True)
class ReasoningTags:
    """Thinking between two tags. starts_open: the answer begins inside, whatever the prompt says."""

    name: str
    opening: str
    closing: str
    starts_open: bool = False


@dataclass(frozen=True)
class Harmony:
    """Messages with a channel each. Every tag is a special token."""

    name: str = "openai_gptoss"
    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    ends: tuple[str, ...] = ("<|end|>", "<|call|>", "<|return|>")

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.constrain, self.message, *self.ends)


ReasoningFormat = ReasoningTags | Harmony

QWEN3 = ReasoningTags("qwen3", "<think>", "</think>")
DEEPSEEK_R1 = ReasoningTags("deepseek_r1", "<think>", "</think>", starts_open=True)
MISTRAL = ReasoningTags("mistral", "[THINK]", "[/THINK]")
HARMONY = Harmony()
_FORMATS: dict[str, ReasoningFormat] = {one.name: one for one in (QWEN3, DEEPSEEK_R1, MISTRAL, HARMONY)}


def choose_reasoning(
    tokenizer: "Tokenizer", template: str, name: ReasoningParserName = "auto"
) -> ReasoningFormat | None:
    """Return the format by its name; "auto": by the tags in the chat template. Raises `ConfigError` if the
    model cannot write it."""
    if name == "none":
        return None
    if name != "auto":
        missing = _lacks(tokenizer) if name == HARMONY.name else None
        if missing is not None:
            raise ConfigError(
                f"the parser {name} needs the special token {missing}, which this model's tokenizer does not have; "
                "choose another parser, or auto"
            )
        return _FORMATS[name]
    if HARMONY.channel in template and _lacks(tokenizer) is None:
        return HARMONY
    return next((one for one in (QWEN3, MISTRAL) if one.closing in template), None)


def _lacks(tokenizer: "Tokenizer") -> str | None:
    """Return a token of harmony that the tokenizer does not have as a special one."""
    needed = (HARMONY.start, HARMONY.channel, HARMONY.message, HARMONY.ends[0])
    return next((one for one in needed if tokenizer.special_id(one) is None), None)
