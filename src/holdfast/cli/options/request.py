"""The options of a request, in groups: sampling, structured output, and the prompt of a receipt.

`SamplingParams` and `StructuredOutput` check the values. None means the default of `SamplingParams`.

A schema or a grammar may be in a file. Which of the two a value is depends on the value alone,
never on the files that exist: a JSON schema begins with a brace, and a grammar contains a colon.
"""
# ruff: noqa: RUF009  (option() makes a dataclass field)

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from holdfast.cli.inputs import parse_ids
from holdfast.core.files import read_text
from holdfast.core.options import option
from holdfast.core.sampling_params import SamplingParams, show
from holdfast.core.structured_output import MAX_GRAMMAR_CHARS, StructuredOutput
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM
    from holdfast.receipts.receipt import Receipt

_sampling = partial(option, panel="Sampling")
_report = partial(option, panel="Report")
_structured = partial(option, panel="Structured output (one of)")
_prompt = partial(option, panel="Options")


@dataclass(frozen=True)
class SamplingOptions:
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
    logprob_token_ids: list[int] | None = _report(
        None,
        "With logprobs, report the token given with this option in place of the most likely ones; may be repeated.",
        name="logprob_token_id",
        metavar="ID",
    )
    prompt_logprobs: int | None = _report(None, "The same for the tokens of the prompt.")
    echo: bool = _report(False, "Repeat the prompt before the answer.", only_on=True)

    def params(self, structured: StructuredOutput | None = None) -> SamplingParams:
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


@dataclass(frozen=True)
class StructuredOptions:
    json_schema: str | None = _structured(
        None, "JSON of this schema: a file, or the schema itself if it begins with {."
    )
    json_object: bool = _structured(False, "Any JSON object.", only_on=True)
    regex: str | None = _structured(None, "Text that matches this regular expression.")
    choice: list[str] | None = _structured(
        None, "One of these texts; repeat the option for each.", metavar="TEXT"
    )
    lark: str | None = _structured(
        None, "Text of this Lark grammar: a file, or the grammar itself if it contains a colon."
    )

    def structured_output(self) -> StructuredOutput | None:
        schema, lark = self.json_schema, self.lark
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = _read(schema, "JSON schema")
        if lark is not None and ":" not in lark:
            lark = _read(lark, "Lark grammar")
        if self == StructuredOptions():
            return None
        return StructuredOutput(schema, self.json_object, self.regex, self.choice or None, lark)


@dataclass(frozen=True)
class PromptOptions:
    """The prompt of a receipt that has only its digest."""

    prompt: str | None = _prompt(
        None, "The prompt, if the receipt has only its digest; raw text or one chat message.", short="-p"
    )
    prompt_ids: str | None = _prompt(None, "The same as token ids, separated by commas.")
    prompt_salt: str | None = _prompt(
        None, "The prompt's salt, if the receipt has only its digest: that of the whole receipt."
    )

    def token_ids(self, llm: "LLM", receipt: "Receipt") -> list[int] | None:
        """Return the prompt's tokens, or None if the options do not give it.

        A text is raw, or one chat message if that has the receipt's digest.
        """
        if self.prompt is not None and self.prompt_ids is not None:
            raise InvalidRequest("give the prompt once: --prompt or --prompt-ids, not both")
        if self.prompt_ids is not None:
            return parse_ids(self.prompt_ids, "--prompt-ids")
        if self.prompt is None:
            return None
        raw = llm.engine.tokenizer.encode(self.prompt)
        salt = receipt.prompt.salt if self.prompt_salt is None else self.prompt_salt
        if not receipt.is_of_prompt(raw, salt) and llm.engine.tokenizer.chat_template is not None:
            return llm.chat_tokens([{"role": "user", "content": self.prompt}])
        return raw


def _read(path: str, what: str) -> str:
    return read_text(path, f"the {what} {show(path)}", MAX_GRAMMAR_CHARS, InvalidRequest)
