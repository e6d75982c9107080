"""`holdfast chat`: talk with a local model or a server, in the terminal or through a pipe."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.answer_writer import AnswerWriter, NewThoughts, has_thoughts
from holdfast.cli.console import note, show_error
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped, parameter_names
from holdfast.cli.options.request import SamplingOptions
from holdfast.cli.results import mode_line
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, PromptTooLong, RequestError, ServerError

if TYPE_CHECKING:
    from holdfast.cli.server_client import ChatServer, StreamedAnswer
    from holdfast.engine.llm.engine_thread import EngineThread
    from holdfast.engine.llm.llm import LLM

_SAMPLING = SamplingOptions(max_tokens=512)
_HELP = "/reset clears the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
_LOCAL_ONLY = parameter_names(EngineConfig) - parameter_names(SamplingOptions)
_SERVER = "Server"  # the panel of options
Message = dict[str, str]
Show = Callable[[str, Sequence[Thought]], None]
Ask = Callable[[list[Message], Show, AnswerWriter], "Answer | StreamedAnswer"]

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_ALWAYS = ("max_tokens", "temperature")  # servers have defaults of their own


@dataclass(frozen=True)
class Answer:
    text: str
    error: str | None
    summary: str


class Conversation:
    """The messages so far. A turn that failed is not kept.

    ask: return the answer, shown as it arrives, or raise `PromptTooLong` if the messages do not fit.
    """

    def __init__(self, ask: Ask, system: str | None, *, with_thoughts: bool) -> None:
        self._ask = ask
        self._system = [{"role": "system", "content": system}] if system is not None else []
        self._with_thoughts = with_thoughts
        self._thoughts: list[Thought] = []  # of the last turn
        self.turns: list[Message] = []

    def reset(self) -> None:
        self.turns = []
        self._thoughts = []

    def say(self, text: str) -> str | None:
        """Write the answer to stdout as it arrives. Return a line about it, or None if it failed.

        An answer that is stopped by Ctrl-C is kept. If the context is full, the oldest turns are dropped.
        """
        question = {"role": "user", "content": text}
        writer = AnswerWriter(with_thoughts=self._with_thoughts)
        thoughts = NewThoughts(self._thoughts)

        def show(text: str, new: Sequence[Thought]) -> None:
            writer.write(text, thoughts.select(new))

        kept = list(self.turns)
        while True:
            try:
                answer = self._ask([*self._system, *kept, question], show, writer)
                break
            except PromptTooLong:
                if not kept:
                    raise
                kept = kept[2:]
        num_dropped = (len(self.turns) - len(kept)) // 2
        if num_dropped:
            turns = "turn" if num_dropped == 1 else f"{num_dropped} turns"
            note(f"the context is full: dropped the oldest {turns}")
        self.turns, self._thoughts = kept, thoughts.turn
        writer.end()
        if answer.error is not None:
            show_error(answer.error)
            return None
        self.turns += [question, {"role": "assistant", "content": answer.text}]
        return answer.summary


def ask_model(llm: "LLM", engine: "EngineThread", params: SamplingParams) -> Ask:
    """Answer with a model in this process."""

    def ask(messages: list[Message], show: Show, writer: AnswerWriter) -> Answer:
        prompt_ids = llm.chat_tokens(messages)
        room = llm.engine.limits.max_model_len - params.max_tokens
        if len(prompt_ids) > room:
            raise PromptTooLong(
                f"this message takes {len(prompt_ids)} tokens, and the context has {max(room, 0)} beside an answer of "
                f"{params.max_tokens}; shorten the message or lower --max-tokens"
            )
        handle = engine.submit(prompt_ids, params)
        while handle.result is None:
            try:
                for delta in handle:
                    show(delta.text, delta.thoughts)
            except KeyboardInterrupt:
                handle.cancel()
        return Answer(handle.result.text, handle.result.error, mode_line(handle.result))

    return ask


def ask_server(server: "ChatServer", model: str | None, params: SamplingParams) -> Ask:
    """Answer with a server. Raise `ServerError` if it does not, `ConfigError` if a setting cannot be sent."""
    settings = request_fields(params)
    body = {"model": model or server.first_model(), **settings, **_STREAMED}
    return lambda messages, show, writer: server.stream(
        {**body, "messages": messages}, show, writer.write_reasoning
    )


def request_fields(params: SamplingParams) -> dict[str, Any]:
    """Return sampling as fields of a request, without defaults: servers without our extensions accept it."""
    if params.bad_ids:
        raise ConfigError("--bad-token-id cannot be sent to a server; use --bad-word or --logit-bias")
    body = {
        one.name: getattr(params, one.name)
        for one in fields(params)
        if one.name in _ALWAYS or getattr(params, one.name) != one.default
    }
    if params.biases:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in params.biases}
    return body


@grouped(without=("n", "logprobs", "prompt_logprobs", "echo", "max_num_seqs", "prefix_cache", "receipt_key"))
def chat(
    context: typer.Context,
    model: o.ModelArgument = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message.")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Talk to the OpenAI-compatible server at this address, such as http://127.0.0.1:8000.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    api_key: o.ApiKeyOption = None,
    model_name: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model's name on the server. Default: the first the server lists. Without --url, the same as MODEL.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    thoughts: Annotated[
        bool | None,
        typer.Option(
            "--thoughts/--no-thoughts",
            help="Show the thoughts of a thinking model on stderr; in a terminal, dimmed and inside the answer. Default: "
            "shown if the model thinks.",
        ),
    ] = None,
    sampling: SamplingOptions = _SAMPLING,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Talk with a model.

    /reset clears the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer.
    """
    if url is not None:
        _refuse(given_options(context, _LOCAL_ONLY), "is for a local model and cannot be used with --url")
        from holdfast.cli.server_client import ChatServer

        server = ChatServer(url, o.first_key(api_key))
        ask = ask_server(server, model_name, sampling.params())
        _converse(Conversation(ask, system, with_thoughts=thoughts is not False))
        return
    _refuse(given_options(context, ("api_key",)), "is for a server; give its --url")
    if model is not None and model_name is not None:
        raise ConfigError(f"the model is given twice: {model} and --model {model_name}")
    params = sampling.params()
    config = replace(engine, model=model or model_name, max_num_seqs=1)
    opened = o.open_model(config)
    if params.max_tokens < opened.limits.max_model_len or given_options(context, ("max_tokens",)):
        opened.check_params(params)  # a small context refuses the default of max_tokens turn by turn
    o.show_hint(config.model)
    llm = o.open_llm(config, opened=opened)
    if thoughts:
        has_thoughts(llm, params)  # a note if not
    with llm.run_freely() as running:
        ask = ask_model(llm, running, params)
        _converse(Conversation(ask, system, with_thoughts=thoughts is not False))


def _refuse(given: list[str], why: str) -> None:
    if given:
        raise ConfigError(f"{', '.join(given)} {why}")


def _converse(conversation: Conversation) -> None:
    """Answer line by line until the input ends. A turn that fails is reported and not kept."""
    if sys.stdin.isatty():
        note(_HELP)
    for line in _read_lines():
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            conversation.reset()
            note("the conversation is cleared")
        elif line.startswith("/"):
            note(_HELP)
        elif line:
            try:
                summary = conversation.say(line)
                if summary is not None:
                    note(summary)
            except (RequestError, ServerError) as error:
                show_error(str(error))


def _read_lines() -> Iterator[str]:
    """Yield the user's lines. Ctrl-C at the prompt begins a new line."""
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
