"""`holdfast generate`: prompts in, answers out, streamed as they are committed."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.answers import as_json, show_logprobs
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.cli.options.sampling import SamplingOptions
from holdfast.cli.options.structured import FormOptions
from holdfast.cli.prompt_text import TokenText
from holdfast.cli.prompts import read_prompts
from holdfast.cli.receipt_file import drop_prompt, require_writable, write_receipts
from holdfast.cli.show import note, show_error, stats_line
from holdfast.cli.thoughts import Writer, has_thoughts
from holdfast.core.results import Result
from holdfast.engine.config import EngineConfig

if TYPE_CHECKING:
    from holdfast.core.results import Delta
    from holdfast.core.sampling_params import SamplingParams
    from holdfast.engine.async_engine import RequestHandle
    from holdfast.engine.llm import LLM
    from holdfast.text.tokenizer import Tokenizer

_SAMPLING = SamplingOptions()
_NO_FORM = FormOptions()


@grouped()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help='The prompt; "-", or nothing in a pipe, reads it from stdin.')
    ] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A further prompt; may be repeated.")
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(help='A file with one prompt a line, all answered in one batch; "-" is stdin.'),
    ] = None,
    model: o.ModelOption = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Use the model's chat template, or take the prompt raw; without either, the template if there is one.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a prompt, a line each; all answers are in its choices."),
    ] = False,
    thoughts: Annotated[
        bool,
        typer.Option(
            "--thoughts",
            help="Show what a model that thinks writes while it reads: the prompt with each thought behind what it read, "
            "then the answer with its own. They go to stderr, so that stdout holds the answer alone: dimmed and in "
            "their place in a terminal, elsewhere a line each. --json has them with or without this.",
        ),
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Show mode, seed and counts on stderr.")] = False,
    receipt: Annotated[
        Path | None,
        typer.Option(
            help="Write the receipt to this file, for holdfast replay; of several prompts, one a line, in order.",
            show_default=False,
        ),
    ] = None,
    no_prompt_in_receipt: Annotated[
        bool,
        typer.Option(
            "--no-prompt-in-receipt",
            help="Keep only the prompt's digest in receipts; who replays one must know the prompt.",
        ),
    ] = False,
    sampling: SamplingOptions = _SAMPLING,
    form: FormOptions = _NO_FORM,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Answer a prompt, or several in one batch."""
    params = sampling.params(form.form())
    asked = read_prompts(prompt, prompts or [], prompts_file)
    if receipt is not None:
        require_writable(receipt)
    llm = o.open_llm(replace(engine, model=model))
    output = Output(
        len(asked),
        json_output,
        keep_prompts=not no_prompt_in_receipt,
        with_thoughts=thoughts and has_thoughts(llm, params),
    )
    results = _answer(llm, asked, params, chat, output)
    if receipt is not None:
        write_receipts(receipt, results)
    for number, result in enumerate(results, 1):
        if not json_output:
            _show_tables(number, result, output)
        if stats:
            note(stats_line(result))
        if result.error is not None:
            show_error(result.error)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _answer(
    llm: "LLM", prompts: list[str], params: "SamplingParams", chat: bool | None, output: "Output"
) -> list[Result]:
    """Submit everything, then show the answers in prompt order, the first unfinished one as it grows."""
    from holdfast.engine.async_engine import AsyncEngine

    through_template = llm.engine.tokenizer.chat_template is not None if chat is None else chat
    tokens: list[str | list[int]] = [
        llm.chat_tokens([{"role": "user", "content": prompt}]) if through_template else prompt
        for prompt in prompts
    ]
    with AsyncEngine(llm.engine) as engine:
        handles = [engine.submit(one, params) for one in tokens]
        try:
            return [
                output.show(number, handle, params.n, llm.engine.tokenizer, prompt)
                for number, (handle, prompt) in enumerate(zip(handles, tokens, strict=True), 1)
            ]
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


@dataclass(frozen=True)
class Output:
    """How answers are written to stdout: as text under headings, if there are several, or as JSON lines."""

    num_prompts: int
    as_json: bool
    keep_prompts: bool
    with_thoughts: bool = False

    def show(
        self,
        number: int,
        handle: "RequestHandle",
        num_choices: int,
        tokenizer: "Tokenizer",
        prompt: str | list[int],
    ) -> Result:
        """Write the answers to one prompt and give back its result.

        The first choice is shown as it grows. The others grow beside it; they follow when all are complete.
        """
        if not self.as_json:
            read = TokenText(tokenizer, prompt) if self.with_thoughts else None
            writer = self._begin(number, 0, num_choices, read)
            later: dict[int, list[Delta]] = {}
            for delta in handle:
                if delta.index == 0:
                    writer.take(delta.text, delta.thoughts)
                else:
                    later.setdefault(delta.index, []).append(delta)
            writer.end()
        result = handle.wait()
        if not self.keep_prompts:
            result = drop_prompt(result)
        if self.as_json:
            typer.echo(as_json(result))
        else:
            for index in range(1, len(result.choices)):
                writer = self._begin(number, index, num_choices)
                for delta in later.get(index, ()):
                    own = [one for one in delta.thoughts if one.position >= len(result.prompt_token_ids)]
                    writer.take(delta.text, own)
                writer.end()
        sys.stdout.flush()
        return result

    def label(self, number: int, index: int, num_choices: int) -> str:
        """ "2" is the second prompt's answer, or the only prompt's second; "2.3" the second prompt's third."""
        parts = [number] if self.num_prompts > 1 or num_choices == 1 else []
        return ".".join(map(str, [*parts, index + 1] if num_choices > 1 else parts))

    def _begin(self, number: int, index: int, num_choices: int, prompt: TokenText | None = None) -> Writer:
        """The heading, and a writer of what stands under it. Of several choices, the first shows the prompt."""
        writer = Writer(with_thoughts=self.with_thoughts, prompt=prompt)
        if self.num_prompts > 1 or num_choices > 1:
            first = number == 1 and index == 0
            label = f"[{self.label(number, index, num_choices)}]"
            typer.echo(f"{'' if first else chr(10)}{label}")
            if self.with_thoughts and not writer.inline:
                note(label)
        return writer


def _show_tables(number: int, result: Result, output: Output) -> None:
    if result.prompt_logprobs is not None:
        show_logprobs(f"prompt {number}", result.prompt_logprobs)
    for index, choice in enumerate(result.choices):
        if choice.logprobs is not None:
            show_logprobs(f"answer {output.label(number, index, len(result.choices))}", choice.logprobs)
