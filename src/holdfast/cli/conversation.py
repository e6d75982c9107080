"""A conversation in the terminal: with a model in this process, or with an OpenAI-compatible server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from holdfast.cli.answer_writer import AnswerWriter, NewThoughts
from holdfast.cli.console import note, show_error
from holdfast.cli.results import mode_line
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import ConfigError, PromptTooLong

if TYPE_CHECKING:
    from holdfast.cli.server_client import ChatServer, StreamedAnswer
    from holdfast.engine.llm.engine_thread import EngineThread
    from holdfast.engine.llm.llm import LLM

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
