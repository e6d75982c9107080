"""Sampling as a group of options: the fields of `SamplingParams`, which checks their values.

None means the default of `SamplingParams`.
"""
# ruff: noqa: RUF009  (option() makes a dataclass field)

from dataclasses import dataclass
from functools import partial

from holdfast.core.options import option
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest

_sampling = partial(option, panel="Sampling")
_report = partial(option, panel="Report")


@dataclass(frozen=True)
class SamplingOptions:
    """A group of options (`groups`)."""

    max_tokens: int = _sampling(128, "Maximum number of tokens of the answer.", short="-n")
    min_tokens: int = _sampling(0, "Minimum number of tokens of the answer.")
    temperature: float = _sampling(0.7, "Sampling temperature; 0 is greedy.", short="-t")
    top_k: int = _sampling(0, "Sample from the k most likely tokens; 0 is off.")
    top_p: float = _sampling(
        1.0, "Nucleus sampling: keep the smallest set of tokens with this total probability."
    )
    min_p: float = _sampling(0.0, "Drop tokens that are less likely than this times the most likely one.")
    seed: int | None = _sampling(
        None,
        "Seed of the sampling noise.",
        unset="0 with --deterministic, else a random one, which is reported",
    )
    n: int = _sampling(1, "Number of answers to each prompt; the first is the same as with --n 1.")
    deterministic: bool | None = _sampling(
        None, "Give the same tokens and logprob bits every time, whatever else runs.", short="-d"
    )
    stop: list[str] | None = _sampling(None, "Stop at this text; may be repeated.", metavar="TEXT")
    stop_token_ids: list[int] | None = _sampling(
        None, "Stop at this token; may be repeated.", name="stop_token_id", metavar="ID"
    )
    ignore_eos: bool = _sampling(False, "Keep generating after the end-of-text token.", only_on=True)
    repetition_penalty: float = _sampling(
        1.0, "Above 1: tokens of the prompt and of the answer so far become less likely."
    )
    frequency_penalty: float = _sampling(
        0.0, "From -2 to 2: subtracted from a token's logit for each time it is in the answer."
    )
    presence_penalty: float = _sampling(
        0.0, "From -2 to 2: subtracted once from the logit of a token that is in the answer."
    )
    logit_bias: list[str] | None = _sampling(
        None, "Add VALUE, from -100 to 100, to this token's logit; may be repeated.", metavar="ID=VALUE"
    )
    allowed_token_ids: list[int] | None = _sampling(
        None,
        "Sample only from the tokens given with this option; may be repeated.",
        name="allowed_token_id",
        metavar="ID",
    )
    bad_token_ids: list[int] | None = _sampling(
        None, "Never sample this token; may be repeated.", name="bad_token_id", metavar="ID"
    )
    bad_words: list[str] | None = _sampling(
        None, "Never generate this text; may be repeated.", name="bad_word", metavar="TEXT"
    )
    skip_special_tokens: bool = _sampling(True, "Leave special tokens out of the answer's text, or not.")
    include_stop_str_in_output: bool = _sampling(
        False, "Keep the text or token that stopped the answer.", only_on=True
    )
    think: bool = _sampling(True, "Let a thinking model think, or not.")
    logprobs: int | None = _report(
        None, "Report the logprob of each token of the answer, and this many of the most likely ones."
    )
    prompt_logprobs: int | None = _report(None, "The same for the tokens of the prompt.")
    echo: bool = _report(False, "Repeat the prompt before the answer.", only_on=True)

    def params(self, structured: StructuredOutput | None = None) -> SamplingParams:
        """Return the settings of a request. Raise `InvalidRequest` for wrong ones."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.deterministic:  # the same command gives the same answer
            given.setdefault("seed", 0)
        biases = [_parse_bias(text) for text in self.logit_bias or ()]
        return SamplingParams(**{**given, "logit_bias": biases, "structured": structured})


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise InvalidRequest(
            f"--logit-bias must be a token id and a number, such as 42=-5, not {text[:80]!r}"
        ) from None
