"""The output of one choice: committed tokens become text, and stop strings end it.

Text that may be the start of a stop string is held back until it cannot be one any more. An echoed
prompt comes before the text and is not searched for stop strings. Without stop strings the
scheduler does not need the text, so tokens are detokenised only when a delta is made: on a GPU that
is after the next plan was started. A caller that wants only the result gets no deltas; then all
tokens are detokenised together, at the end.
"""

from collections.abc import Sequence

from holdfast.core.events import RequestEnded
from holdfast.core.request import Prepared
from holdfast.core.results import Choice, Delta, Thought
from holdfast.core.sent_answer import NOTHING_SENT
from holdfast.core.step_plan import Sampled, TokenLogprob
from holdfast.core.stop_rules import find_stop, held_back_len
from holdfast.errors import InvalidRequest
from holdfast.text.detokenizer import Detokenizer


class ChoiceOutput:
    """Makes deltas and a `Choice` of committed tokens. It is the scheduler's `AnswerText`."""

    def __init__(self, prepared: Prepared, index: int, detokenizer: Detokenizer) -> None:
        request = self.request = prepared.request
        self.index = index
        self._eos_ids = frozenset() if request.params.ignore_eos else prepared.eos_ids
        self._detokenizer = detokenizer
        self._stops = request.params.stop_strings
        self._stop_ids = self._eos_ids | frozenset(request.params.stop_ids)
        self._shows_stop = request.params.include_stop_str_in_output
        self._wants_logprobs = request.params.logprobs is not None
        self._is_deterministic = request.deterministic
        self._text = ""
        self._shown_len = 0  # characters of the text that were in a delta
        self._stop: str | None = None  # the stop string that ended the text
        self._num_pushed = 0
        self._pending_ids: list[int] = []  # not detokenised yet
        self._token_ids: list[int] = []
        self._echo = request.echo_text  # until it is shown
        self._thoughts: list[Thought] = []
        self.sent = request.sent[index] if request.sent else NOTHING_SENT
        self.logprobs: list[TokenLogprob] = []  # of every token whose logprob was computed, requested or not

    def restore(self, thoughts: Sequence[Thought]) -> None:
        """Continue after what another engine sent. Logprobs of a deterministic choice are added when
        they are confirmed."""
        sent = self.sent
        for token_id in sent.token_ids:
            if self.push(token_id) and not sent.has_ended:
                raise InvalidRequest(f"the answer that was sent ends at the stop string {self._stop!r}")
        self._detokenize()
        self._token_ids += sent.token_ids
        self._thoughts += thoughts
        if not self.request.deterministic:
            self.logprobs += sent.logprobs
        if sent.num_chars:
            self._shown_len = sent.num_chars - len(self._echo)
            self._echo = ""

    def confirm_samples(self, samples: Sequence[Sampled]) -> None:
        """Tokens that another engine sent came out again."""
        self.logprobs += [sample.logprob for sample in samples if sample.logprob is not None]

    def push(self, token_id: int) -> bool:
        """Take one committed token.

        True if a stop string is now complete. A stop token has no text, unless the client asked for
        it.
        """
        self._num_pushed += 1
        if token_id in self._stop_ids and not self._shows_stop:
            return False
        if self._stops:
            return self._append(self._detokenizer.push(token_id))
        self._pending_ids.append(token_id)
        return False

    def _detokenize(self) -> None:
        if self._pending_ids:
            self._text += self._detokenizer.extend(self._pending_ids)
            self._pending_ids.clear()

    def _append(self, text: str) -> bool:
        """Add text and search it for stop strings.

        True if it has one. One before min_tokens is text like any other.
        """
        searched_len = len(self._text)
        self._text += text
        may_end = self._num_pushed >= self.request.params.min_tokens
        found = find_stop(self._text, searched_len, self._stops) if text and may_end else None
        if found is None:
            return False
        at, self._stop = found
        self._text = self._text[: at + len(self._stop) if self._shows_stop else at]
        return True

    def keep_samples(self, samples: Sequence[Sampled]) -> None:
        """Take newly committed samples without a delta."""
        for sample in samples:
            self._token_ids.append(sample.token_id)
            if sample.logprob is not None:
                self.logprobs.append(sample.logprob)
        if not self._detokenizer.gains_by_batching:
            self._detokenize()

    def add_samples(self, samples: Sequence[Sampled]) -> Delta:
        """The delta of newly committed samples, with the text that may be shown by now."""
        if len(samples) == 1:  # nearly always
            token_ids: tuple[int, ...] = (samples[0].token_id,)
            first = samples[0].logprob
            logprobs: tuple[TokenLogprob, ...] = () if first is None else (first,)
        else:
            token_ids = tuple([sample.token_id for sample in samples])
            logprobs = tuple([sample.logprob for sample in samples if sample.logprob is not None])
        self._token_ids += token_ids
        self.logprobs += logprobs
        self._detokenize()
        hidden_len = held_back_len(self._text, self._stops) if self._stops and self._stop is None else 0
        text = self._show(len(self._text) - hidden_len)
        shown_logprobs = logprobs if self._wants_logprobs else None
        values = tuple([one.logprob for one in logprobs]) if self._is_deterministic else ()
        index = self.index
        return tuple.__new__(Delta, (text, token_ids, shown_logprobs, index, None, (), None, values))

    def add_thoughts(self, thoughts: Sequence[Thought]) -> Delta:
        """The delta of newly committed thoughts."""
        self._thoughts += thoughts
        return Delta(index=self.index, thoughts=tuple(thoughts))

    def finish(self, ended: RequestEnded) -> tuple[Delta, Choice]:
        """The last delta and the whole choice."""
        self._detokenize()
        if self._stop is None:
            self._append(self._detokenizer.flush())
        stop_reason = self._stop_reason() if ended.reason == "stop" else None
        delta = Delta(
            self._show(len(self._text)),
            index=self.index,
            finish_reason=ended.reason,
            stop_reason=stop_reason,
        )
        choice = Choice(
            text=self.request.echo_text + self._text,
            token_ids=tuple(self._token_ids),
            finish_reason=ended.reason,
            logprobs=tuple(self.logprobs) if self._wants_logprobs else None,
            thoughts=tuple(self._thoughts),
            stop_reason=stop_reason,
        )
        return delta, choice

    def _stop_reason(self) -> str | int | None:
        """The stop string or the id in stop_token_ids that ended the text.

        An end-of-text token is none, also if stop_token_ids has it.
        """
        if self._stop is not None or not self._token_ids:
            return self._stop
        last = self._token_ids[-1]
        return last if last in self.request.params.stop_ids and last not in self._eos_ids else None

    def _show(self, end: int) -> str:
        """The text up to here that was not shown before."""
        text = self._text[self._shown_len : end]
        if self._echo:
            text, self._echo = self._echo + text, ""
        if end > self._shown_len:
            self._shown_len = end
        return text
