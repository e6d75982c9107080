"""The way from committed tokens to a request's result.

    AnswerOutput      one answer: committed tokens become text and deltas, and stop strings end it
    RequestAnswers    all answers of a request: they are submitted, and collected into its result

An answer of which the client has a part already goes on after it: see `core.sent`. One that has ended
while others of its request run is computed again where its bits are guaranteed, or where its request
scores the prompt; otherwise it is taken as it was sent. After a revocation the engine does the same
with answers that it ended itself. What is computed again gives no deltas. It must come out as it was
sent, or the request ends with `GuaranteeLost`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core.events import (
    AnswerEvent,
    ExtraCommitted,
    PromptScored,
    RequestEnded,
    TokensCommitted,
    TokensConfirmed,
)
from holdfast.core.request import Prepared
from holdfast.core.results import Choice, Delta, Result, Stats, Thought, sum_stats, weakest
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import NOTHING_SENT, Sent
from holdfast.core.step_plan import Sampled, TokenLogprob
from holdfast.core.stop_rules import find_stop, held_back_len
from holdfast.errors import AnswerEnded, GuaranteeLost
from holdfast.scheduler.scheduler import Scheduler
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer

_LOST = "an answer that was already sent is not that of a verified pass"


class AnswerOutput:
    """Makes deltas and a `Choice` of committed tokens. It is the scheduler's `AnswerText`.

    Text that may be the start of a stop string is held back until it cannot be one any more. An echoed
    prompt comes before the text and is not searched for stop strings. Without stop strings the
    scheduler does not need the text, so tokens are detokenised only when a delta is made: on a GPU that
    is after the next plan was started. A caller that wants only the result gets no deltas; then all
    tokens are detokenised together, at the end.
    """

    def __init__(
        self, prepared: Prepared, index: int, detokenizer: Detokenizer, thoughts: Sequence[Thought] = ()
    ) -> None:
        """thoughts: those of what was sent."""
        request = self.request = prepared.request
        params = request.params
        self.index = index
        self._detokenizer = detokenizer
        self._stops = params.stop_strings
        self._eos_ids = frozenset() if params.ignore_eos else prepared.eos_ids
        self._stop_ids = self._eos_ids | frozenset(params.stop_ids)
        self._shows_stop = params.include_stop_str_in_output
        self._wants_logprobs = params.logprobs is not None
        self._is_deterministic = request.deterministic
        self._text = ""
        self._shown_len = 0  # characters of the text that were in a delta
        self._stop: str | None = None  # the stop string that ended the text
        self._num_pushed = 0
        self._pending_ids: list[int] = []  # not detokenised yet
        self._token_ids: list[int] = []
        self._echo = request.echo_text  # until it is shown
        self._thoughts: list[Thought] = []
        self.logprobs: list[TokenLogprob] = []  # of every token whose logprob was computed, requested or not
        self.sent = request.sent[index] if request.sent else NOTHING_SENT
        if request.sent:
            self._restore(self.sent, thoughts)

    def _restore(self, sent: Sent, thoughts: Sequence[Thought]) -> None:
        """Continue after what was sent. Logprobs of a deterministic answer are added when they are
        confirmed."""
        for token_id in sent.token_ids:
            if self.push(token_id) and not sent.has_ended:
                raise AnswerEnded(f"the answer that was sent ends at the stop string {self._stop!r}")
        self._detokenize()
        self._token_ids += sent.token_ids
        self._thoughts += thoughts
        if not self._is_deterministic:
            self.logprobs += sent.logprobs
        if sent.num_chars:
            self._shown_len = sent.num_chars - len(self._echo)
            self._echo = ""

    def confirm_samples(self, samples: Sequence[Sampled]) -> None:
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

    def add_samples(self, samples: Sequence[Sampled], *, wants_delta: bool = True) -> Delta | None:
        """Take newly committed samples. Return their delta, with the text that may be shown by now."""
        if len(samples) == 1:  # nearly always
            token_ids: tuple[int, ...] = (samples[0].token_id,)
            first = samples[0].logprob
            logprobs: tuple[TokenLogprob, ...] = () if first is None else (first,)
        else:
            token_ids = tuple([sample.token_id for sample in samples])
            logprobs = tuple([sample.logprob for sample in samples if sample.logprob is not None])
        self._token_ids += token_ids
        self.logprobs += logprobs
        if wants_delta or not self._detokenizer.gains_by_batching:
            self._detokenize()
        if not wants_delta:
            return None
        hidden_len = held_back_len(self._text, self._stops) if self._stops and self._stop is None else 0
        text = self._show(len(self._text) - hidden_len)
        shown_logprobs = logprobs if self._wants_logprobs else None
        values = tuple([one.logprob for one in logprobs]) if self._is_deterministic else ()
        return tuple.__new__(Delta, (text, token_ids, shown_logprobs, self.index, None, (), None, values, ()))

    def add_thoughts(self, thoughts: Sequence[Thought]) -> Delta:
        self._thoughts += thoughts
        return Delta(index=self.index, thoughts=tuple(thoughts))

    def finish(self, ended: RequestEnded) -> tuple[Delta, Choice]:
        """Return the last delta and the whole answer."""
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
        """Return the stop string or the id in stop_token_ids that ended the text.

        An end-of-text token is none, also if stop_token_ids has it.
        """
        if self._stop is not None or not self._token_ids:
            return self._stop
        last = self._token_ids[-1]
        return last if last in self.request.params.stop_ids and last not in self._eos_ids else None

    def _show(self, end: int) -> str:
        """Return the text up to here that was not shown before."""
        text = self._text[self._shown_len : end]
        if self._echo:
            text, self._echo = self._echo + text, ""
        if end > self._shown_len:
            self._shown_len = end
        return text


@dataclass(frozen=True)
class _Known:
    """An answer that is computed again, as the client has it.

    logprobs, requested or not, and scores of the prompt are those that this engine computed before.
    None: another engine did, and only the logprobs of the tokens themselves are known.
    """

    choice: Choice
    logprobs: tuple[TokenLogprob, ...] | None = None
    scores: tuple[TokenLogprob, ...] | None = None


class RequestAnswers:
    """The answers of one request, each with an `AnswerOutput`.

    `result` is set once all of them have ended. Without wants_deltas it is all that is made.
    """

    def __init__(
        self, prepared: Prepared, scheduler: Scheduler, tokenizer: Tokenizer, *, wants_deltas: bool = True
    ) -> None:
        self.request = prepared.request
        self.result: Result | None = None
        self._prepared = prepared
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._wants_deltas = wants_deltas
        self._outputs = {id_: self._output(prepared, index) for index, id_ in enumerate(self.request.ids)}
        self._choices: dict[int, Choice] = {}  # by id, of those that have ended
        self._ends: dict[int, RequestEnded] = {}
        self._scores: list[TokenLogprob] = []
        self._embedding: bytes | None = None
        self._known: dict[int, _Known] = {}  # of those that are computed again

    @property
    def open_ids(self) -> tuple[int, ...]:
        return tuple(id_ for id_ in self._outputs if id_ not in self._choices)

    @property
    def logprobs(self) -> tuple[tuple[TokenLogprob, ...], ...]:
        """The logprobs of every answer, requested or not.

        A deterministic answer has one for each token.
        """
        known = [self._known.get(id_, _NOTHING_KNOWN).logprobs for id_ in self._outputs]
        return tuple(
            tuple(output.logprobs) if logprobs is None else logprobs
            for output, logprobs in zip(self._outputs.values(), known, strict=True)
        )

    def submit(self) -> None:
        """Submit every answer, those that had ended before included."""
        for index, (id_, output) in enumerate(self._outputs.items()):
            if output.sent.has_ended:
                self._restore_ended(id_, index, output)
            else:
                self._scheduler.submit(self._prepared, output, index)

    def _restore_ended(self, id_: int, index: int, output: AnswerOutput) -> None:
        """An answer ended in another engine. A deterministic one is computed again and must end alike;
        an ordinary one only if it scores the prompt."""
        request, sent = self.request, output.sent
        assert sent.finish_reason is not None
        # An ordinary request's tokens count as candidates that are accepted at once.
        stats = Stats(candidates=len(sent.token_ids), accepted=len(sent.token_ids))
        ended = RequestEnded(id_, sent.finish_reason, "none", stats)
        _, choice = output.finish(ended)
        if request.deterministic:
            if choice.logprobs is not None:
                choice = replace(choice, logprobs=sent.own_logprobs)
            self._compute_again(id_, sent, _Known(choice))
        elif index == 0 and request.score_from is not None:
            self._compute_again(id_, sent, _Known(choice), _up_to(request.params, len(sent.token_ids)))
        else:
            self._choices[id_], self._ends[id_] = choice, ended

    def recompute_ended(self) -> None:
        """The certificate is revoked: compute the answers again that have ended.

        The scheduler restarts the others itself.
        """
        for id_, choice in tuple(self._choices.items()):
            logprobs = tuple(self._outputs[id_].logprobs)
            scores: tuple[TokenLogprob, ...] = ()
            if id_ == self.request.request_id:
                scores, self._scores = tuple(self._scores), []
            del self._choices[id_], self._ends[id_]
            sent = Sent(
                array("i", choice.token_ids),
                array("f", [one.logprob for one in logprobs]),
                len(choice.text),
                [thought.token_ids for thought in choice.thoughts],
            )
            self._compute_again(id_, sent, _Known(choice, logprobs, scores))

    def _compute_again(
        self, id_: int, sent: Sent, known: _Known, params: SamplingParams | None = None
    ) -> None:
        """Submit an answer that has ended again. All its tokens but the last are candidates."""
        request, index = self.request, id_ - self.request.request_id
        all_sent = list(request.sent) or [NOTHING_SENT] * request.params.n
        all_sent[index] = sent.before_last()
        request = replace(request, params=params or request.params, sent=tuple(all_sent))
        again = replace(self._prepared, request=request)
        if again.grammars:
            again.grammars[index].restart()
        self._known[id_] = known
        self._outputs[id_] = self._output(again, index)
        self._scheduler.submit(again, self._outputs[id_], index)

    def _output(self, prepared: Prepared, index: int) -> AnswerOutput:
        request = prepared.request
        skip = request.params.skip_special_tokens
        detokenizer = Detokenizer(self._tokenizer, request.prompt_ids, skip_special_tokens=skip)
        sent = request.sent[index].thoughts if request.sent else ()
        thoughts = [self._decode(one) for one in enumerate(sent)]
        return AnswerOutput(prepared, index, detokenizer, thoughts)

    def _decode(self, item: object) -> Thought:
        extension = self._scheduler.config.new_extension
        assert extension is not None
        thought: Thought = extension.decode(item, self.request, self._tokenizer)
        return thought

    def process(self, event: AnswerEvent) -> Delta | None:
        """Process an event of one answer. Returns what the client is sent, if anything."""
        id_ = event.request_id
        output = self._outputs[id_]
        delta: Delta | None = None
        if isinstance(event, TokensCommitted):
            delta = output.add_samples(event.samples, wants_delta=self._wants_deltas)
        elif isinstance(event, ExtraCommitted):
            delta = output.add_thoughts([self._decode(item) for item in event.items])
        elif isinstance(event, RequestEnded):
            delta = self._end(event, output)
        elif isinstance(event, PromptScored):
            self._scores.extend(event.logprobs)
            if self._wants_deltas and len(self._scores) == self.request.num_scored:
                return Delta(scores=tuple(self._scores))
        elif isinstance(event, TokensConfirmed):
            output.confirm_samples(event.samples)
        else:
            self._embedding = event.embedding
        return delta if self._wants_deltas and id_ not in self._known else None

    def _end(self, ended: RequestEnded, output: AnswerOutput) -> Delta:
        id_ = ended.request_id
        delta, choice = output.finish(ended)
        known = self._known.get(id_)
        if known is not None:
            choice, ended = self._confirm(choice, ended, known)
        self._choices[id_], self._ends[id_] = choice, ended
        if not self.open_ids:
            self.result = self._make_result()
        return delta

    def _confirm(self, choice: Choice, ended: RequestEnded, known: _Known) -> tuple[Choice, RequestEnded]:
        """Compare an answer with what the client has of it. The client keeps that, with an error if
        they differ. Ordinary answers may differ."""
        deterministic = self.request.deterministic
        if deterministic and ended.reason != "abort" and not self._is_same(choice, ended.request_id, known):
            error, code = ended.error or _LOST, ended.error_code or GuaranteeLost.code
            ended = replace(ended, reason="error", error=error, error_code=code)
        if ended.reason in ("abort", "error"):
            return replace(known.choice, finish_reason=ended.reason), replace(ended, determinism="none")
        return (choice if deterministic else known.choice), ended

    def _is_same(self, choice: Choice, id_: int, known: _Known) -> bool:
        if known.logprobs is None:
            return _without_top(choice) == _without_top(known.choice)
        scores = tuple(self._scores) if id_ == self.request.request_id else ()
        found = choice, tuple(self._outputs[id_].logprobs), scores
        return found == (known.choice, known.logprobs, known.scores)

    def _make_result(self) -> Result:
        request, ends = self.request, list(self._ends.values())
        scores: tuple[TokenLogprob | None, ...] | None = None
        if request.score_from is not None:
            sent = self._known.get(request.request_id, _NOTHING_KNOWN).scores
            scores = tuple(self._scores) if sent is None else sent
            scores = (None, *scores) if request.score_from == 1 else scores
        failed = next((ended for ended in ends if ended.error is not None), None)
        return Result(
            prompt_token_ids=request.prompt_ids,
            choices=tuple(self._choices[id_] for id_ in self._outputs),
            seed=request.seed,
            determinism=weakest(ended.determinism for ended in ends),
            stats=sum_stats([ended.stats for ended in ends]),
            error=None if failed is None else failed.error,
            prompt_logprobs=scores,
            error_code=None if failed is None else failed.error_code,
            embedding=self._embedding,
        )


_NOTHING_KNOWN = _Known(Choice("", (), "abort"))


def _up_to(params: SamplingParams, num_tokens: int) -> SamplingParams:
    return replace(params, max_tokens=num_tokens, min_tokens=min(num_tokens, params.min_tokens))


def _without_top(choice: Choice) -> Choice:
    if choice.logprobs is None:
        return choice
    return replace(choice, logprobs=tuple(replace(one, top=()) for one in choice.logprobs))
