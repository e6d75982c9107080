"""A conversation with a model in this process.

If the context is full, the oldest turns are dropped.
"""

from typing import TYPE_CHECKING

from holdfast.cli.answer_writer import AnswerWriter, NewThoughts
from holdfast.cli.console import note, show_error
from holdfast.cli.results import mode_line
from holdfast.core.sampling_params import SamplingParams
from holdfast.errors import PromptTooLong

if TYPE_CHECKING:
    from holdfast.engine.engine_thread import EngineThread
    from holdfast.engine.llm import LLM


class LocalConversation:
    """The messages so far. Turns that failed are not kept."""

    def __init__(
        self,
        llm: "LLM",
        engine: "EngineThread",
        params: SamplingParams,
        system: str | None,
        *,
        with_thoughts: bool = True,
    ) -> None:
        self._llm = llm
        self._engine = engine
        self._params = params
        self._system = [{"role": "system", "content": system}] if system is not None else []
        self._with_thoughts = with_thoughts
        self._new_thoughts = NewThoughts()
        self.turns: list[dict[str, str]] = []

    def reset(self) -> None:
        self.turns = []
        self._new_thoughts.forget()

    def say(self, text: str) -> str:
        """One turn: the answer goes to stdout as it is committed.

        An answer stopped by Ctrl-C is kept.
        """
        question = {"role": "user", "content": text}
        prompt_ids = self._fit(question)
        handle = self._engine.submit(prompt_ids, self._params)
        writer = AnswerWriter(with_thoughts=self._with_thoughts)
        self._new_thoughts.begin_turn()
        while handle.result is None:
            try:
                for delta in handle:
                    writer.write(delta.text, self._new_thoughts.select(delta.thoughts))
            except KeyboardInterrupt:
                handle.cancel()
        writer.end()
        result = handle.result
        if result.error is not None:
            show_error(result.error)
        else:
            self.turns += [question, {"role": "assistant", "content": result.text}]
        return mode_line(result)

    def _fit(self, question: dict[str, str]) -> list[int]:
        """The prompt's tokens.

        The oldest turns are dropped, with a note, until the prompt fits the context.
        """
        room = self._llm.engine.limits.max_model_len - self._params.max_tokens
        kept = list(self.turns)
        while True:
            prompt_ids = self._llm.chat_tokens([*self._system, *kept, question])
            if len(prompt_ids) <= room:
                break
            if not kept:
                raise PromptTooLong(
                    f"this message takes {len(prompt_ids)} tokens, and the context has {max(room, 0)} beside an answer of "
                    f"{self._params.max_tokens}; shorten the message or lower --max-tokens"
                )
            kept = kept[2:]
        if len(kept) < len(self.turns):
            note_dropped_turns((len(self.turns) - len(kept)) // 2)
            self.turns = kept
        return prompt_ids


def note_dropped_turns(num_turns: int) -> None:
    note(f"the context is full: dropped the oldest {'turn' if num_turns == 1 else f'{num_turns} turns'}")
