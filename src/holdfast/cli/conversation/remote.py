"""A conversation with an OpenAI-compatible server. An error of the server is one line."""

from collections.abc import Sequence
from typing import Any

from holdfast.cli.answer_writer import AnswerWriter, NewThoughts
from holdfast.cli.console import show_error
from holdfast.cli.conversation.local import note_dropped_turns
from holdfast.cli.conversation.server_client import ChatServer, RequestRefused, StreamedAnswer
from holdfast.core.results import Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import ConfigError, ServerError

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_SAME_NAMES = (
    *("min_tokens", "top_k", "top_p", "min_p", "seed", "deterministic"),
    *("stop", "stop_token_ids", "ignore_eos", "allowed_token_ids", "bad_words"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "think"),
    *("skip_special_tokens", "include_stop_str_in_output"),
)


def request_fields(params: SamplingParams) -> dict[str, Any]:
    """Sampling as fields of a request.

    Defaults are left out, so that servers without our extensions accept it.
    """
    if params.bad_ids:
        raise ConfigError("--bad-token-id cannot be sent to a server; use --bad-word or --logit-bias")
    defaults = SamplingParams()
    fields: dict[str, Any] = {"max_tokens": params.max_tokens, "temperature": params.temperature}
    fields |= {
        name: getattr(params, name)
        for name in _SAME_NAMES
        if getattr(params, name) != getattr(defaults, name)
    }
    if params.biases:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in params.biases}
    return fields


class RemoteConversation:
    """The messages so far. Turns that failed are not kept."""

    def __init__(
        self,
        server: ChatServer,
        model: str | None,
        params: SamplingParams,
        system: str | None,
        *,
        with_thoughts: bool = True,
    ) -> None:
        """Raises `ServerError` if the server does not answer, `ConfigError` for settings that
        cannot be sent.
        """
        fields = request_fields(params)
        self._server = server
        self._fields = {"model": model or server.first_model(), **fields, **_STREAMED}
        self._system = [{"role": "system", "content": system}] if system is not None else []
        self._with_thoughts = with_thoughts
        self._new_thoughts = NewThoughts()
        self.turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self.turns = []
        self._new_thoughts.forget()

    def say(self, text: str) -> str | None:
        """One turn. An answer stopped by Ctrl-C is kept; a failed one is reported and dropped."""
        question = {"role": "user", "content": text}
        writer = AnswerWriter(with_thoughts=self._with_thoughts)
        self._new_thoughts.begin_turn()
        try:
            answer = self._request(question, writer)
        except ServerError as error:
            show_error(str(error))
            return None
        writer.end()
        if answer.error is not None:
            show_error(answer.error)
            return None
        self.turns += [question, {"role": "assistant", "content": answer.text}]
        return answer_line(answer)

    def _request(self, question: dict[str, str], writer: AnswerWriter) -> StreamedAnswer:
        """The answer. The oldest turns are dropped until the server accepts the length."""

        def show(text: str, thoughts: Sequence[Thought]) -> None:
            writer.write(text, self._new_thoughts.select(thoughts))

        kept = list(self.turns)
        while True:
            try:
                messages = [*self._system, *kept, question]
                body = {**self._fields, "messages": messages}
                answer = self._server.stream(body, show, writer.write_reasoning)
                break
            except RequestRefused as error:
                if error.code != "context_length_exceeded" or not kept:
                    raise
                kept = kept[2:]
        if len(kept) < len(self.turns):
            note_dropped_turns((len(self.turns) - len(kept)) // 2)
            self.turns = kept
        return answer


def answer_line(answer: StreamedAnswer) -> str:
    """Mode, length, seed and finish reason as in `mode_line`, as far as the server sends them."""
    about = answer.holdfast or {}
    parts = [f"{answer.num_tokens} tokens", str(answer.finish_reason)]
    if "mode" in about:
        parts.insert(0, "ordinary" if about["mode"] == "none" else str(about["mode"]))
    if "seed" in about:
        parts.insert(-1, f"seed {about['seed']}")
    return " · ".join(parts)
