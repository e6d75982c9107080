"""`holdfast chat`: a conversation in the terminal, or line by line through a pipe."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options as o
from holdfast.cli.groups import grouped
from holdfast.cli.sampling_options import SamplingOptions
from holdfast.cli.show import mode_line, note, show_error
from holdfast.core.params import SamplingParams
from holdfast.core.result import Result
from holdfast.errors import PromptTooLong, RequestError

if TYPE_CHECKING:
    from holdfast.engine.handle import AsyncEngine
    from holdfast.engine.llm import LLM

_SAMPLING = SamplingOptions(max_tokens=512)
_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@grouped(without=("n", "logprobs", "prompt_logprobs", "echo", "max_num_seqs", "prefix_cache"))
def chat(
    model: o.ModelArgument = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.")] = None,
    sampling: SamplingOptions = _SAMPLING,
    engine: o.EngineOptions = o.ENGINE,
) -> None:
    """Talk with a model. /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."""
    from holdfast.engine.handle import AsyncEngine

    params = sampling.params()
    llm = replace(engine, model=model, max_num_seqs=1).open()
    if sys.stdin.isatty():
        note(_HELP)
    with AsyncEngine(llm.engine) as running:
        _converse(Conversation(llm, running, params, system))


def _converse(conversation: "Conversation") -> None:
    """Turn by turn, until the lines end. A turn that fails says so and is forgotten."""
    for line in _lines():
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            conversation.reset()
            note("the conversation is forgotten")
        elif line.startswith("/"):
            note(_HELP)
        elif line:
            try:
                note(mode_line(conversation.say(line)))
            except RequestError as error:
                show_error(str(error))


def _lines() -> Iterator[str]:
    """What the user says, a line at a time. Ctrl-C at the prompt begins a new line."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401  (gives input() its history and editing)
    while True:
        try:
            line = input("> ") if interactive else sys.stdin.readline()
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if not line and not interactive:
            return
        yield line.strip()


class Conversation:
    """The messages so far. Only turns that were answered are kept."""

    def __init__(self, llm: "LLM", engine: "AsyncEngine", params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._engine = engine
        self._params = params
        self._system = [{"role": "system", "content": system}] if system is not None else []
        self.turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self.turns = []

    def say(self, text: str) -> Result:
        """One turn: the answer goes to stdout as it is committed. An answer stopped by Ctrl-C counts as said."""
        question = {"role": "user", "content": text}
        prompt_ids = self._fit(question)
        handle = self._engine.submit(prompt_ids, self._params)
        while handle.result is None:
            try:
                for delta in handle:
                    sys.stdout.write(delta.text)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                handle.cancel()
        sys.stdout.write("\n")
        sys.stdout.flush()
        result = handle.result
        if result.error is not None:
            show_error(result.error)
        else:
            self.turns += [question, {"role": "assistant", "content": result.text}]
        return result

    def _fit(self, question: dict[str, str]) -> list[int]:
        """The prompt's tokens. The oldest turns are forgotten, with a word about it, until it fits the context."""
        room = self._llm.engine.limits.max_model_len - self._params.max_tokens
        kept = list(self.turns)
        while True:
            prompt_ids = self._llm.chat_tokens([*self._system, *kept, question])
            if len(prompt_ids) <= room:
                break
            if not kept:
                raise PromptTooLong(
                    f"this message alone takes {len(prompt_ids)} tokens and the context has room for {max(room, 0)} "
                    f"beside an answer of {self._params.max_tokens}; say it shorter or lower --max-tokens"
                )
            kept = kept[2:]
        forgotten = (len(self.turns) - len(kept)) // 2
        if forgotten:
            note(
                f"the context is full: forgot the oldest {'turn' if forgotten == 1 else f'{forgotten} turns'}"
            )
            self.turns = kept
        return prompt_ids
