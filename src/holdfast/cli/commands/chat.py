"""`holdfast chat`: talk with a local model or a server, in the terminal or through a pipe."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.answer_writer import has_thoughts
from holdfast.cli.console import note, show_error
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import given_options, grouped, parameter_names
from holdfast.cli.options.request import SamplingOptions
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, RequestError, ServerError

if TYPE_CHECKING:
    from holdfast.cli.conversation import Conversation

_SAMPLING = SamplingOptions(max_tokens=512)
_HELP = "/reset clears the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
_LOCAL_ONLY = parameter_names(EngineConfig) - parameter_names(SamplingOptions)
_SERVER = "Server"


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
    api_key: Annotated[
        str | None,
        typer.Option(
            help="The server's API key.",
            envvar="HOLDFAST_API_KEY",
            rich_help_panel=_SERVER,
        ),
    ] = None,
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
        from holdfast.cli.conversation import Conversation, ask_server
        from holdfast.cli.server_client import ChatServer

        server = ChatServer(url, api_key and api_key.split(",")[0])  # HOLDFAST_API_KEY may hold several
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
    from holdfast.cli.conversation import Conversation, ask_model

    if thoughts:
        has_thoughts(llm, params)  # a note if not
    with llm.run_freely() as running:
        ask = ask_model(llm, running, params)
        _converse(Conversation(ask, system, with_thoughts=thoughts is not False))


def _refuse(given: list[str], why: str) -> None:
    if given:
        raise ConfigError(f"{', '.join(given)} {why}")


def _converse(conversation: "Conversation") -> None:
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
