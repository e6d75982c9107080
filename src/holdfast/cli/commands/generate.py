"""`holdfast generate`: answer prompts; text is streamed as it is committed."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.answer_writer import AnswerWriter, PromptText, has_thoughts
from holdfast.cli.console import note, show_error
from holdfast.cli.help_format import HelpCommand
from holdfast.cli.inputs import read_prompts
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.options.request import SamplingOptions, StructuredOptions
from holdfast.cli.results import (
    as_json,
    drop_prompt,
    full_stats,
    require_writable,
    show_logprobs,
    stats_line,
    write_receipts,
)
from holdfast.core.results import Result
from holdfast.engine.config import EngineConfig
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.core.results import Delta
    from holdfast.core.sampling_params import SamplingParams
    from holdfast.engine.llm.engine_thread import RequestHandle
    from holdfast.engine.llm.llm import LLM
    from holdfast.engine.start.preflight import OpenedModel
    from holdfast.text.tokenizer import Tokenizer

_STATS = {"--stats=full": "--stats-full", "--stats=line": "--stats"}
_SAMPLING = SamplingOptions()
_STRUCTURED = StructuredOptions()


class GenerateCommand(HelpCommand):
    """Read --stats=full. An option with an optional value would take the prompt after it as value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        spelled = [_STATS.get(one, one) for one in args[:end]]
        return super().parse_args(ctx, [*spelled, *args[end:]])


COMMAND_SETTINGS = {"cls": GenerateCommand}


@grouped()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help='The prompt. "-" reads it from stdin; so does no prompt, in a pipe.')
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Another prompt; may be repeated.")
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(help='A file with one prompt on each line, answered in one batch; "-" is stdin.'),
    ] = None,
    model: o.ModelOption = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Apply the model's chat template, or use the prompt as it is. Default: the template, if the model has one.",
        ),
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object for each prompt, on one line: text, token ids, logprobs with their bits, seed, counts. "
            "With --n above 1 these are in choices.",
        ),
    ] = False,
    thoughts: Annotated[
        bool,
        typer.Option(
            "--thoughts",
            help="Show the thoughts of a thinking model on stderr: the prompt with each thought after the text it is about, "
            "then the answer with its thoughts. In a terminal they are dimmed and inside the text, elsewhere one line "
            "each. --json always has them.",
        ),
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Show mode, tokens, seed and finish reason on stderr, in one line. --stats=full also shows the counts "
            "of the engine's work.",
        ),
    ] = False,
    stats_full: Annotated[bool, typer.Option("--stats-full", hidden=True)] = False,
    receipt: Annotated[
        Path | None,
        typer.Option(
            help="Write the receipt to this file, for holdfast replay; for several prompts, one a line, in order. With "
            '--json, "-" adds it to the JSON instead.',
        ),
    ] = None,
    no_prompt_in_receipt: Annotated[
        bool,
        typer.Option(
            "--no-prompt-in-receipt",
            help="Leave the prompt's tokens out of receipts, keep their digest; replay then needs the prompt.",
        ),
    ] = False,
    sampling: SamplingOptions = _SAMPLING,
    structured: StructuredOptions = _STRUCTURED,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Answer a prompt, or several in one batch."""
    params = sampling.params(structured.structured_output())
    texts = read_prompts(prompt, prompts or [], prompts_file)
    in_json = str(receipt) == "-"
    if in_json and not json_output:
        raise InvalidRequest(
            "--receipt - adds the receipt to the JSON of an answer; give --json, too, or a file"
        )
    if receipt is not None and not in_json:
        require_writable(receipt)
    config = replace(engine, model=model)
    opened = _check(config, params, texts, chat)
    o.show_hint(model)
    llm = o.open_llm(config, opened=opened)
    output = Output(
        len(texts),
        params.n,
        llm.engine.tokenizer,
        json_output,
        keep_prompts=not no_prompt_in_receipt,
        with_receipts=in_json,
        with_thoughts=thoughts and has_thoughts(llm, params),
    )
    results = _answer(llm, texts, params, chat, output)
    if receipt is not None and not in_json:
        write_receipts(receipt, results)
    for number, result in enumerate(results, 1):
        if not json_output:
            _show_tables(number, result, output)
        if stats or stats_full:
            note(full_stats(result) if stats_full else stats_line(result))
        if result.error is not None:
            show_error(result.error)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _check(
    config: EngineConfig, params: "SamplingParams", prompts: list[str], chat: bool | None
) -> "OpenedModel":
    """Refuse wrong settings, grammars, models and raw prompts before torch is imported."""
    if params.structured is not None:
        from holdfast.structured.spec import check_grammar

        check_grammar(params.structured)
    opened = o.open_model(config)
    is_raw = opened.tokenizer.chat_template is None if chat is None else not chat
    if is_raw:
        for prompt in prompts:
            opened.check_request(prompt, params)
    else:
        opened.chat_tokenizer.warm()  # beside the import of torch
        opened.check_params(params)
    return opened


def _answer(
    llm: "LLM", prompts: list[str], params: "SamplingParams", chat: bool | None, output: "Output"
) -> list[Result]:
    through_template = llm.engine.tokenizer.chat_template is not None if chat is None else chat
    tokens: list[str | list[int]] = [
        llm.chat_tokens([{"role": "user", "content": prompt}]) if through_template else prompt
        for prompt in prompts
    ]
    with llm.run_freely() as engine:
        handles = [engine.submit(one, params) for one in tokens]
        try:
            return [
                output.show(number, handle, prompt)
                for number, (handle, prompt) in enumerate(zip(handles, tokens, strict=True), 1)
            ]
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@dataclass(frozen=True)
class Output:
    """Write answers to stdout: as text, with headings if there are several, or as JSON lines."""

    num_prompts: int
    num_choices: int
    tokenizer: "Tokenizer"
    as_json: bool
    keep_prompts: bool
    with_receipts: bool
    with_thoughts: bool

    def show(self, number: int, handle: "RequestHandle", prompt: str | list[int]) -> Result:
        """Write the answers to one prompt, the first as it is streamed, and return the result."""
        if not self.as_json:
            read = PromptText(self.tokenizer, prompt) if self.with_thoughts else None
            writer = self._begin(number, 0, read)
            later: dict[int, list[Delta]] = {}
            for delta in handle:
                if delta.index == 0:
                    writer.write(delta.text, delta.thoughts)
                else:
                    later.setdefault(delta.index, []).append(delta)
            writer.end()
        result = handle.wait()
        if not self.keep_prompts:
            result = drop_prompt(result)
        if self.as_json:
            typer.echo(as_json(result, with_receipt=self.with_receipts))
        else:
            for index in range(1, len(result.choices)):
                writer = self._begin(number, index)
                for delta in later.get(index, ()):
                    own = [one for one in delta.thoughts if one.position >= len(result.prompt_token_ids)]
                    writer.write(delta.text, own)
                writer.end()
        sys.stdout.flush()
        return result

    def label(self, number: int, index: int) -> str:
        """ "2" is the second prompt's answer, or the only prompt's second; "2.3" the second prompt's third."""
        parts = [number] if self.num_prompts > 1 or self.num_choices == 1 else []
        return ".".join(map(str, [*parts, index + 1] if self.num_choices > 1 else parts))

    def _begin(self, number: int, index: int, prompt: PromptText | None = None) -> AnswerWriter:
        writer = AnswerWriter(with_thoughts=self.with_thoughts, prompt=prompt)
        if self.num_prompts > 1 or self.num_choices > 1:
            first = number == 1 and index == 0
            label = f"[{self.label(number, index)}]"
            typer.echo(f"{'' if first else chr(10)}{label}")
            if self.with_thoughts and not writer.inline:
                note(label)
        return writer


def _show_tables(number: int, result: Result, output: Output) -> None:
    if result.prompt_logprobs is not None:
        show_logprobs(f"prompt {number}", result.prompt_logprobs)
    for index, choice in enumerate(result.choices):
        if choice.logprobs is not None:
            show_logprobs(f"answer {output.label(number, index)}", choice.logprobs)
