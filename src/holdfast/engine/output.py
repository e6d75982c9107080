"""One answer as it grows: committed tokens become text, stop strings end it, and a client sees each piece once.

Text that may be the beginning of a stop string is held back until it cannot be one any more. An echoed prompt comes before
it and is never searched. Where there are no stop strings nobody needs the text before it is shown: tokens wait for that, and
a device whose next pass is planned first does not wait for text.
"""

from collections.abc import Sequence

from holdfast.core.events import RequestEnded
from holdfast.core.record_class import record_class
from holdfast.core.request import Request
from holdfast.core.results import Choice, Thought
from holdfast.core.step_plan import Sampled, TokenLogprob
from holdfast.core.stop_rules import FinishReason, find_stop, held_back_len
from holdfast.text.detokenizer import Detokenizer


@record_class
class Delta:
    """What came since the last delta of this choice. Tokens may come without text, and text later than its tokens; thoughts
    come before the tokens they led to.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    index: int = 0
    finish_reason: FinishReason | None = None  # with the last delta of a choice
    thoughts: tuple[Thought, ...] = ()


class Answer:
    """Watches a request's committed tokens (it is the scheduler's `AnswerText`) and turns them into deltas and a choice."""

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self._detokenizer = detokenizer
        self._stops = request.params.stop_strings
        eos_ids = frozenset() if request.params.ignore_eos else request.eos_ids
        self._stop_ids = eos_ids | frozenset(request.params.stop_ids)
        self._wants_logprobs = request.params.logprobs is not None
        self._text = ""
        self._shown = 0
        self._cut = False
        self._num_pushed = 0
        self._unread: list[int] = []  # tokens that are no text yet
        self._token_ids: list[int] = []
        self._echo = request.echo_text  # not shown yet
        self._thoughts: list[Thought] = []
        self.logprobs: list[TokenLogprob] = []  # of every token whose logprob was computed, asked for or not

    def push(self, token_id: int) -> bool:
        """One committed token; true if a stop string is complete. The stop token itself gives no text."""
        self._num_pushed += 1
        if token_id in self._stop_ids:
            return False
        if self._stops:
            return self._grow(self._detokenizer.push(token_id))
        self._unread.append(token_id)
        return False

    def _read(self) -> None:
        """Make text of the tokens that wait for it."""
        self._text += "".join([self._detokenizer.push(token_id) for token_id in self._unread])
        self._unread.clear()

    def _grow(self, piece: str) -> bool:
        """Take on text; a stop string that ends before the answer may end is text like any other."""
        searched = len(self._text)
        self._text += piece
        may_end = self._num_pushed >= self.request.params.min_tokens
        at = find_stop(self._text, searched, self._stops) if piece and may_end else None
        if at is None:
            return False
        self._text = self._text[:at]
        self._cut = True
        return True

    def take(self, samples: Sequence[Sampled]) -> Delta:
        """The committed samples, and the text that may be shown by now."""
        if len(samples) == 1:  # nearly always
            token_ids: tuple[int, ...] = (samples[0].token_id,)
            first = samples[0].logprob
            logprobs: tuple[TokenLogprob, ...] = () if first is None else (first,)
        else:
            token_ids = tuple([sample.token_id for sample in samples])
            logprobs = tuple([sample.logprob for sample in samples if sample.logprob is not None])
        self._token_ids += token_ids
        self.logprobs += logprobs
        self._read()
        hidden = held_back_len(self._text, self._stops) if self._stops and not self._cut else 0
        return Delta(
            self._show(len(self._text) - hidden),
            token_ids,
            logprobs if self._wants_logprobs else None,
            self.request.index,
        )

    def take_thoughts(self, thoughts: Sequence[Thought]) -> Delta:
        """What was thought behind further chunks."""
        self._thoughts += thoughts
        return Delta("", (), index=self.request.index, thoughts=tuple(thoughts))

    def finish(self, ended: RequestEnded) -> tuple[Delta, Choice]:
        """The last text and the whole answer."""
        self._read()
        if not self._cut:
            self._grow(self._detokenizer.flush())
        last = self._show(len(self._text))
        delta = Delta(last, (), index=self.request.index, finish_reason=ended.reason)
        choice = Choice(
            text=self.request.echo_text + self._text,
            token_ids=tuple(self._token_ids),
            finish_reason=ended.reason,
            logprobs=tuple(self.logprobs) if self.request.params.logprobs is not None else None,
            thoughts=tuple(self._thoughts),
        )
        return delta, choice

    def _show(self, until: int) -> str:
        piece = self._text[self._shown : until]
        if self._echo:
            piece, self._echo = self._echo + piece, ""
        if until > self._shown:
            self._shown = until
        return piece
