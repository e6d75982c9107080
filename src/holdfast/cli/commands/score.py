"""`holdfast score`: the logprobs of given completions behind given prompts, all in one batch."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.answers import bits
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.pairs import Pair, read_pairs
from holdfast.core.sampling_params import score_params
from holdfast.engine.config import EngineConfig
from holdfast.errors import InvalidRequest, PromptTooLong

if TYPE_CHECKING:
    from holdfast.engine.llm import LLM


@grouped()
def score(
    prompt: Annotated[
        str | None, typer.Argument(help="A raw text; or see --prompt-ids.", show_default=False)
    ] = None,
    completion: Annotated[
        str | None, typer.Argument(help="A raw text; or see --completion-ids.", show_default=False)
    ] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option(help="The prompt as token ids, with commas between them.", show_default=False),
    ] = None,
    completion_ids: Annotated[
        str | None, typer.Option(help="The completion as token ids.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help='Further pairs, a JSON object a line: {"prompt": ..., "completion": ...}, texts or lists of token '
            'ids; "-" is stdin.',
            show_default=False,
        ),
    ] = None,
    model: o.ModelOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put prompts that are texts through the model's chat template.")
    ] = False,
    think: Annotated[
        bool, typer.Option("--think/--no-think", help="Let a model that thinks do so, or do without.")
    ] = True,
    ordinary: Annotated[
        bool, typer.Option("--ordinary", help="Without the guarantee that the bits are always the same.")
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Below each sum: id, logprob, fp32 bits and text of every token.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON object a pair, a line each, with every token.")
    ] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Show the logprob of a completion behind a prompt: the sum over its tokens, a line each pair.

    The bits are those that generate reports when it writes the same tokens deterministically.
    """
    texts = [text for text in (prompt, completion) if text is not None]
    pairs = read_pairs(texts, prompt_ids, completion_ids, file)
    llm = o.open_llm(replace(engine, model=model))
    for scored in _score(llm, pairs, chat, not ordinary, think):
        if json_output:
            typer.echo(json.dumps(scored.as_dict(), ensure_ascii=False))
        else:
            scored.show(tokens)


@dataclass(frozen=True)
class Scored:
    """A completion's tokens, with their texts and logprobs."""

    token_ids: list[int]
    texts: list[str]
    logprobs: list[float]
    num_prompt_tokens: int
    deterministic: bool
    fingerprint: str

    @property
    def total(self) -> float:
        """Exact until it is rounded once: no order of adding shows in it."""
        return math.fsum(self.logprobs)

    def as_dict(self) -> dict[str, Any]:
        each = zip(self.token_ids, self.texts, self.logprobs, strict=True)
        return {
            "sum": self.total,
            "prompt_tokens": self.num_prompt_tokens,
            "tokens": [
                {"token_id": id_, "text": text, "logprob": value, "bits": bits(value)}
                for id_, text, value in each
            ],
            "deterministic": self.deterministic,
            "fingerprint": self.fingerprint,
        }

    def show(self, tokens: bool) -> None:
        typer.echo(repr(self.total))
        for id_, text, value in zip(self.token_ids, self.texts, self.logprobs, strict=True) if tokens else ():
            typer.echo(f"{id_:>8}  {value:>12.6f}  {bits(value)}  {text!r}")


def _score(llm: "LLM", pairs: list[Pair], chat: bool, deterministic: bool, think: bool) -> list[Scored]:
    from holdfast.engine.replay import fingerprint_of

    ids = [_tokenize(llm, pair, chat, deterministic) for pair in pairs]
    logprobs = llm.score_batch(ids, deterministic=deterministic, think=think)
    fingerprint = fingerprint_of(llm).digest
    token_bytes = llm.engine.tokenizer.token_bytes
    return [
        Scored(
            token_ids=completion,
            texts=[token_bytes(id_).decode("utf-8", "replace") for id_ in completion],
            logprobs=each,
            num_prompt_tokens=len(prompt),
            deterministic=deterministic,
            fingerprint=fingerprint,
        )
        for (prompt, completion), each in zip(ids, logprobs, strict=True)
    ]


def _tokenize(llm: "LLM", pair: Pair, chat: bool, deterministic: bool) -> tuple[list[int], list[int]]:
    """Prompt and completion as the engine takes them. What is wrong with a pair is said with its place."""
    try:
        prompt = pair.prompt
        if chat and isinstance(prompt, str):
            prompt = llm.chat_tokens([{"role": "user", "content": prompt}])
        request = llm.engine.prepare(
            prompt, score_params(deterministic=deterministic), completion=pair.completion
        )
    except (InvalidRequest, PromptTooLong) as error:
        raise InvalidRequest(f"{pair.where}: {error}" if pair.where else str(error)) from error
    ids = list(request.prompt_ids)
    return ids[: request.score_from], ids[request.score_from :]
