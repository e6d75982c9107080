"""One request while it lives: its tokens, its pages, how far they are computed. The only request state that changes.

    canonical_len   KV of positions 0 .. canonical_len - 1 is canonical
    computed_len    KV of positions 0 .. computed_len - 1 is there, canonical or fast
    scored_len      tokens at positions score_from .. scored_len - 1 have their logprobs, if they were asked for

For a deterministic sequence behind its prefill canonical_len == committed_len - 1: the last committed token has no
canonical KV yet, it is the first row of the next window.

These lengths say what was taken in. What is planned behind them is in flight: `flying` holds its spans, oldest first, and a
result is taken in only if it is that of the oldest. So a sequence that ended or started over need only forget them.
"""

from collections.abc import Sequence as Ordered
from dataclasses import replace

from holdfast.core.grammar import Grammar
from holdfast.core.request import AnswerText, Request
from holdfast.core.results import Determinism, Stats
from holdfast.core.step_plan import NO_TOKEN, Sampled, Sampling, Span, ThoughtIds, TokenLogprob
from holdfast.core.stop_rules import FinishReason, finish_reason, looks_final
from holdfast.errors import AnswerFailed, GuaranteeLost, NoTokenAllowed
from holdfast.kv_cache.page_pool import PagePool
from holdfast.kv_cache.page_table import PageTable
from holdfast.kv_cache.prefix_cache import PrefixCache, PrefixNode
from holdfast.kv_cache.prefix_cursor import PrefixCursor
from holdfast.scheduler.ngram_proposer import NgramProposer
from holdfast.scheduler.phase import LIVE, Phase, advance
from holdfast.scheduler.sent_tokens import SentTokens
from holdfast.scheduler.token_log import TokenLog
from holdfast.scheduler.verification import judge
from holdfast.thinking.thought_log import ThoughtLog

FIRST_WINDOW = 1  # candidates in a request's first window: its client is waiting


class RequestState:
    """A live request. Changed by the scheduler alone."""

    def __init__(
        self,
        request: Request,
        text: AnswerText,
        pool: PagePool,
        index: PrefixCache,
        max_window: int,
        *,
        grammar: Grammar | None = None,
        speculates: bool = False,
        thoughts: ThoughtLog | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.request_id = request.request_id
        self.deterministic = params.deterministic
        self.logprobs = params.logprobs
        self.canonical_logprobs = 0 if params.logprobs is None else params.logprobs
        self.tokens = TokenLog(request.prompt_ids)
        self.page_table = PageTable(pool)
        self.request_index = -1  # its place in the runner's table of sampled tokens, while it runs
        self.flying: list[Span] = []
        self.ahead = 0  # tokens that spans in flight will give, one each
        self.phase = Phase.QUEUED
        self.stats = Stats()
        self.canonical_len = 0
        self.computed_len = 0
        self.scored_len = request.score_from or 0
        self.max_window = max_window
        self.window_cap = FIRST_WINDOW
        self.last_judged = 0  # the step of the last window, so that windows take turns
        self.finish_reason: FinishReason | None = None
        self.failure: AnswerFailed | None = None
        self.is_lost = False  # what was promised did not come out again
        self.certified_only = True  # no canonical pass of this sequence was uncertified so far
        self.grammar = grammar
        self._grammar_restarts = False  # when it is admitted: a pass in flight may still use it
        self.lookup = NgramProposer(request.prompt_ids) if speculates else None
        self.thoughts = thoughts  # if it thinks
        self.rule = None if thoughts is None else thoughts.rule
        self._looked_up = False
        self.fell = False  # its last window was not all right
        self._record = SentTokens(request.params.deterministic)
        self._text = text
        self.trail = PrefixCursor(index, pool.page_size)
        self._pool = pool
        self._page_size = pool.page_size
        eos_ids = () if params.ignore_eos else tuple(sorted(request.eos_ids))
        forbidden = params.stop_ids + eos_ids
        self._stop_ids = frozenset(forbidden)
        self.sampling = Sampling(
            params,
            request.seed,
            request.prompt_len,
            forbidden if params.min_tokens else (),
            request.bad_words,
            tuple(sorted(request.eos_ids)),
        )
        # Its next row needs the tokens before it, not only their KV.
        self.is_synchronous = grammar is not None or self.sampling.needs_history

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE

    @property
    def only_scored(self) -> bool:
        """Nothing is generated: the prompt's own logprobs are all that is asked for."""
        return self.request.params.max_tokens == 0

    @property
    def prefill_len(self) -> int:
        """How far KV must reach before a token can be chosen; for a prompt that is only scored, before it is done."""
        return max(1, self.tokens.prompt_len - 1) if self.only_scored else self.tokens.committed_len - 1

    @property
    def expected_len(self) -> int:
        """Tokens there will be once all in flight is taken in, if nothing ends before."""
        return self.tokens.total_len + self.ahead

    @property
    def next_start(self) -> int:
        """Behind what is in flight, or else where the KV ends that this sequence's answers stand on."""
        if self.flying:
            return self.flying[-1].stop
        return self.canonical_len if self.deterministic else self.computed_len

    @property
    def tokens_left(self) -> int:
        """Tokens it may still say behind what is in flight."""
        return self.request.params.max_tokens - self.tokens.num_output - self.ahead

    @property
    def is_looked_up(self) -> bool:
        """Its candidates come from the look-up: no pass has seen them yet."""
        return self._looked_up

    @property
    def is_prefilling(self) -> bool:
        """Its next row is still one of its prompt, or of what is computed again."""
        return self.phase is Phase.PREFILL and not self.ahead

    @property
    def is_undecided(self) -> bool:
        """A deterministic sequence's candidates are in flight, or a window over some. Canonical rows always have logprobs."""
        last = self.flying[-1]
        return self.deterministic and (last.num_sampled > 1 or last.logprobs is None)

    @property
    def waits(self) -> bool:
        """Nothing can be planned behind what is in flight: a window of known candidates, or an end.

        Where candidates are in flight themselves, whether their window is waited for is not decided here.
        """
        last = self.flying[-1]
        if self.tokens.num_candidates and len(last.token_ids) - last.sample_from > 1:
            return True
        most = self.request.params.max_tokens
        if most == 0:
            return last.stop >= self.prefill_len
        return self.tokens.committed_len - self.tokens.prompt_len + self.ahead >= most

    @property
    def needs_prefill(self) -> bool:
        """More than the last token is still without the KV this sequence's answers stand on."""
        return (self.canonical_len if self.deterministic else self.computed_len) < self.prefill_len

    @property
    def cacheable_len(self) -> int:
        """So much may come from the prefix index: not the rows whose logits are still wanted."""
        length = self.tokens.committed_len - 1
        if self.thoughts is not None:
            length = self.thoughts.shared_len(length)
        return length if self.request.score_from is None else min(length, self.scored_len - 1)

    @property
    def candidate_due(self) -> bool:
        """The candidates want a verdict now: enough of them, or the last one looks like an end."""
        log = self.tokens
        if log.num_candidates == 0:
            return False
        num_output = log.total_len - log.prompt_len
        final = looks_final(log.last, num_output, self.request.params, self.request.eos_ids)
        return final or self._looked_up or log.num_candidates >= self.window_cap

    @property
    def determinism(self) -> Determinism:
        doubted = self.is_confirming or (self.thoughts is not None and self.thoughts.is_doubted)
        if not self.deterministic or self.failure is not None or doubted:
            return "none"
        return "certified" if self.certified_only else "verified"

    def move(self, phase: Phase) -> None:
        self.phase = advance(self.phase, phase)

    # What is in flight

    def fly(self, span: Span) -> None:
        """The span is planned: what follows counts on it."""
        self.flying.append(span)
        if span.sample_from < len(span.token_ids):
            self.ahead += 1

    def land(self, span: Span) -> bool:
        """Whether the span is the oldest in flight, which it is no longer; else its result means nothing any more."""
        if not self.flying or self.flying[0] is not span:
            return False
        del self.flying[0]
        if span.sample_from < len(span.token_ids):
            self.ahead -= 1
        return True

    def forget_flying(self) -> None:
        """Whatever is in flight, its results are not taken in."""
        self.flying.clear()
        self.ahead = 0

    # Candidates from elsewhere than a pass

    def look_up(self, most: int) -> None:
        """Propose what was sent already and must be confirmed, or else what the look-up expects; at most so many."""
        log, params = self.tokens, self.request.params
        assert log.num_candidates == 0
        most = min(most, params.max_tokens - log.num_output - 1)
        expected = self._record.unconfirmed(log.num_output)[: max(0, most)]
        if not expected and self.lookup is not None:
            expected = self.lookup.guesses(most)
        if self.grammar is not None and expected:
            expected = expected[: self.grammar.count_valid(expected)]
        for count, token_id in enumerate(expected, 1):
            log.propose(token_id)
            if looks_final(token_id, log.num_output + count, params, self.request.eos_ids):
                break
        self._looked_up = log.num_candidates > 0
        self.stats.candidates += log.num_candidates
        self.stats.looked_up += log.num_candidates

    @property
    def is_confirming(self) -> bool:
        """Tokens the client has already are being verified anew."""
        return self._record.is_open(self.tokens.num_output)

    # What a pass said

    def keep(
        self, span: Span, samples: Ordered[Sampled], scores: Ordered[TokenLogprob], found: Ordered[ThoughtIds]
    ) -> tuple[Span, Ordered[Sampled], Ordered[TokenLogprob]]:
        """What stands of a span by what was thought in it; rows behind a wrong guess never were."""
        assert self.thoughts is not None
        right = self.thoughts.judge(span, found)
        self.stats.guessed += len(span.guesses)
        self.stats.guessed_right += right
        num_tokens = self.thoughts.stands(span, right) - span.start
        if num_tokens == span.num_tokens:
            return span, samples, scores
        head = span.head(num_tokens)
        return head, samples[: head.num_sampled], scores[: head.num_scored]

    def settle_thoughts(self) -> tuple[tuple[int, ThoughtIds], ...]:
        """What was thought behind chunks whose rows stand by now, as (chunk, thought), if it was not told before."""
        assert self.thoughts is not None
        new, same = self.thoughts.settle(self.canonical_len if self.deterministic else self.computed_len)
        if not same:
            self._lose()
        return new

    def absorb_fast(self, span: Span, samples: Ordered[Sampled]) -> tuple[Sampled, ...]:
        """A fast pass computed the span. Returns what is committed by it: nothing, for a deterministic sequence."""
        self.computed_len = span.stop
        self.stats.fast_passes += 1
        self.stats.prefill_passes += self.phase is Phase.PREFILL
        if not samples:
            return ()
        if self.deterministic:
            self.stats.candidates += 1
            # In place of no token any will do: it will not stand.
            self.tokens.propose(max(0, samples[0].token_id))
            return ()
        return self._judge(samples, fast=True)

    def absorb_canonical(self, span: Span, samples: Ordered[Sampled], certified: bool) -> tuple[Sampled, ...]:
        """A canonical pass computed the span. Returns what is committed by it and was not sent before."""
        self.stats.canonical_passes += 1
        self.stats.prefill_passes += self.phase is Phase.PREFILL
        if span.start <= self.canonical_len:
            self.canonical_len = max(self.canonical_len, span.stop)
        self.computed_len = max(self.computed_len, span.stop)
        self.certified_only &= certified
        return self._judge(samples, fast=False) if samples else ()

    def absorb_scores(self, scores: Ordered[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """Logprobs of the prompt's own tokens, in order. Returns those that were not sent before."""
        self.scored_len += len(scores)
        new, same = self._record.take_scores(scores)
        if not same:
            self._lose()
        return new

    def finish_scoring(self) -> None:
        """A prompt that is only scored is done when its last row is."""
        if self.only_scored and self.failure is None and not self.needs_prefill:
            self.finish_reason = "length"
            self.move(Phase.FINISHED)

    def _judge(self, samples: Ordered[Sampled], *, fast: bool) -> tuple[Sampled, ...]:
        """The verdict on the candidates, if any: commit what stands and one token more, drop the rest.

        A fast pass's own token is a candidate that nobody has to verify.
        """
        if not self.tokens.num_candidates:
            return self._take_one(samples, fast=fast)
        candidates = self.tokens.candidates
        verdict = judge(candidates[: len(samples) - 1], [sample.token_id for sample in samples])
        self.stats.windows += 1
        dropped = len(candidates) - verdict.accepted  # those behind a wrong thought among them
        self.fell = dropped > 0
        if not self._looked_up:
            self._adapt_window(verdict.accepted, dropped)
        self.tokens.drop_candidates()
        self._looked_up = False
        taken, new = self._commit(samples[: verdict.num_committed])
        accepted = min(verdict.accepted, taken)
        own = taken - accepted
        self.stats.accepted += taken if fast else accepted
        self.stats.candidates += own if fast else 0
        self.stats.canonical_tokens += 0 if fast else own
        self.stats.rolled_back += len(candidates) - accepted
        self.stats.rollbacks += self.fell
        self.roll_back()
        return new

    def _take_one(self, samples: Ordered[Sampled], *, fast: bool) -> tuple[Sampled, ...]:
        """The verdict where there is no candidate: the one token stands."""
        assert len(samples) == 1, "a row without candidates behind it gives one token"
        taken, new = self._commit(samples)
        stats = self.stats
        if fast:
            stats.accepted += taken
            stats.candidates += taken
        else:
            stats.canonical_tokens += taken
        self.roll_back()
        return new

    def _commit(self, samples: Ordered[Sampled]) -> tuple[int, tuple[Sampled, ...]]:
        """Commit token by token until one of them ends the answer; what lies behind the end never was.

        Returns how many were taken, and those of them the client does not have yet.
        """
        log, record, taken = self.tokens, self._record, 0
        new: list[Sampled] = []
        for sample in samples:
            token_id = sample.token_id
            if token_id == NO_TOKEN:
                problem = self.grammar.problem if self.grammar is not None else None
                self._fail(
                    NoTokenAllowed(
                        problem
                        or "no token is left to choose: what is allowed and what is forbidden leave none"
                    )
                )
                break
            log.commit_one(token_id)
            taken += 1
            if self.lookup is not None:
                self.lookup.commit(token_id)
            if self.grammar is not None:
                self.grammar.commit(token_id)
            if record.is_new(log.committed_len - log.prompt_len):
                record.add(sample)
                new.append(sample)
                if self._ends_with(token_id):
                    break
            elif not record.confirms(log.num_output, sample):
                self._lose()
                break
        return taken, tuple(new)

    def _ends_with(self, token_id: int) -> bool:
        stopped = self._text.push(token_id)
        num_output = self.tokens.committed_len - self.tokens.prompt_len
        params = self.request.params
        if not stopped and token_id not in self._stop_ids and num_output < params.max_tokens:
            return False
        self.finish_reason = finish_reason(token_id, num_output, stopped, params, self.request.eos_ids)
        if self.finish_reason is not None:
            self.move(Phase.FINISHED)
        return self.finish_reason is not None

    def _fail(self, failure: AnswerFailed) -> None:
        self.failure = failure
        if self.is_live:  # else it had just ended
            self.move(Phase.FAILED)

    def _lose(self) -> None:
        self.is_lost = True
        if self.failure is None:
            self._fail(
                GuaranteeLost(
                    "tokens, logprobs or thoughts that were already sent are not those of a verified pass"
                )
            )

    def _adapt_window(self, accepted: int, dropped: int) -> None:
        """Twice as long after a window that stood, about as long as it stood after one that fell."""
        longer = min(self.max_window, max(self.window_cap, 2 * accepted))
        self.window_cap = max(1, accepted) if dropped else longer

    def roll_back(self) -> None:
        """Truncate KV and pages to the last committed token, which is still to be computed, or is in flight."""
        last = self.tokens.committed_len - 1
        if self.canonical_len > last:
            self.canonical_len = last
        if self.computed_len > last:
            self.computed_len = last
        keep = self.flying[-1].stop if self.flying else last + 1
        if self.page_table.capacity >= keep + self._page_size:
            self.page_table.truncate(keep)

    # Pages

    def admit(self, cached_pages: list[int], node: PrefixNode, num_canonical: int) -> None:
        """Start, or start again, behind the pages found in the prefix index."""
        self.page_table.adopt(cached_pages)
        self.computed_len = len(cached_pages) * self._page_size
        self.canonical_len = num_canonical * self._page_size
        self.trail.begin(node, len(cached_pages))
        self.stats.cached_tokens += self.computed_len
        if self._grammar_restarts and self.grammar is not None:
            self.grammar.restart()
            self._grammar_restarts = False
        self.move(Phase.PREFILL)

    def preempt(self) -> None:
        """Give up every page and candidate; the committed tokens stay. Nothing is in flight."""
        assert not self.flying
        self.drop_candidates()
        self.release()
        self._compute_again()
        self.window_cap = FIRST_WINDOW
        self.stats.preemptions += 1
        self.move(Phase.QUEUED)

    def start_over(self) -> None:
        """Trust nothing computed so far: back to the prompt. What was sent must be confirmed token by token.

        The old pages may be written to until what is in flight is over; the new ones are others.
        """
        self.drop_candidates()
        self.give_up_pages()
        self.page_table = PageTable(self._pool)
        self._compute_again()
        self.scored_len = self.request.score_from or 0
        self._record.doubt()
        if self.thoughts is not None:
            self.thoughts.doubt()
        self.tokens.forget_output()
        self.window_cap = FIRST_WINDOW
        self.certified_only = False
        self.stats.rolled_back += self.stats.accepted
        self.stats.accepted = self.stats.canonical_tokens = 0
        self._grammar_restarts = self.grammar is not None
        if self.lookup is not None:
            self.lookup = NgramProposer(self.request.prompt_ids)
        if self.phase is not Phase.QUEUED:
            self.move(Phase.QUEUED)

    def _compute_again(self) -> None:
        self.canonical_len = self.computed_len = 0
        if self.thoughts is not None:
            self.thoughts.start_again()

    def distrust_pages(self) -> None:
        """An ordinary sequence goes on with the pages it has, and what is in flight, but nobody else shall read them."""
        self.canonical_len = 0
        self.trail.close()

    def final_stats(self) -> Stats:
        """The counts of an answer that ended. What was sent and never confirmed came from canonical passes, too."""
        stats = replace(self.stats)
        if self.deterministic:
            stats.canonical_tokens = self._record.num_sent - stats.accepted
        return stats

    def drop_candidates(self) -> None:
        """Candidates nobody will judge any more."""
        self.stats.rolled_back += self.tokens.drop_candidates()
        self._looked_up = False

    def release(self) -> None:
        self.page_table.release()
        self.trail.leave()

    def give_up_pages(self) -> None:
        """For good; those that are still computed with are given back behind that."""
        self.forget_flying()
        self.page_table.give_up()
        self.trail.leave()

    def index_pages(self) -> None:
        """Make full pages known to the prefix index: canonical ones to everybody, fast ones to ordinary requests."""
        settled = (
            self.canonical_len if self.deterministic else min(self.computed_len, self.tokens.committed_len)
        )
        if self.thoughts is not None:
            settled = self.thoughts.shared_len(settled)
        thoughts = None if self.thoughts is None else self.thoughts.of_pages
        self.trail.extend(settled, self.canonical_len, self.page_table, self.tokens.ids, thoughts)
