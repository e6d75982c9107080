"""Queues the choices of a request: from their start, after what another engine sent of them, or anew
after a revocation.

An answer that another engine began continues in this one. Its choices that still run go on after
what was sent (`RequestState` in the scheduler confirms it). A choice that has ended is computed again
where its bits are guaranteed, or where its request scores the prompt; otherwise it is taken as it was
sent.
"""

from dataclasses import replace
from typing import Any

from holdfast.core.events import RequestEnded
from holdfast.core.grammar import Grammar
from holdfast.core.request import Request
from holdfast.core.results import Stats, Thought
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent_answer import SentChoice
from holdfast.engine.output import ChoiceOutput
from holdfast.engine.result_collector import ResultCollector
from holdfast.scheduler.scheduler import Scheduler
from holdfast.text.detokenizer import Detokenizer
from holdfast.text.tokenizer import Tokenizer
from holdfast.thinking.log import thought_logs


class ChoiceSubmitter:
    """Submits choices to one scheduler, each with an output that detokenises it."""

    def __init__(self, scheduler: Scheduler, tokenizer: Tokenizer) -> None:
        self._scheduler = scheduler
        self._tokenizer = tokenizer

    def collector(self, request: Request, *, wants_deltas: bool) -> ResultCollector:
        """A collector for the choices of a request, none of which is submitted yet."""
        outputs = {branch.request_id: self._output(branch) for branch in request.branches()}
        return ResultCollector(request, outputs, wants_deltas=wants_deltas)

    def submit(self, collector: ResultCollector) -> None:
        """Submit all choices, those that ended in another engine included."""
        request = collector.request
        for branch in request.branches():
            if branch.sent and branch.sent[0].has_ended:
                self._restore_ended(collector, branch, branch.sent[0])
            else:
                output = collector.outputs[branch.request_id]
                self._scheduler.submit(branch, output, _grammar(request, branch))

    def recompute_ended(self, collector: ResultCollector) -> None:
        """Submit again the choices that ended while others of their request still run.

        The scheduler restarts the live ones itself.
        """
        branches = {branch.request_id: branch for branch in collector.request.branches()}
        for branch_id in collector.ended_ids:
            branch = replace(branches[branch_id], sent=())
            output = self._output(branch)
            collector.recompute(branch_id, output)
            grammar = _grammar(collector.request, branch)
            if grammar is not None:
                grammar.restart()
            self._scheduler.submit(branch, output, grammar)

    def decode_thought(self, item: Any) -> Thought:
        chunk, token_ids = item
        logs = thought_logs(self._scheduler.config.new_extension)
        assert logs is not None
        position = (chunk + 1) * logs.chunk_len - 1
        # A model may have more ids than its tokenizer; the ids above have no text.
        known = [token_id for token_id in token_ids if token_id < self._tokenizer.vocab_size]
        return Thought(chunk, position, self._tokenizer.decode(known).strip(), token_ids)

    def _output(self, branch: Request) -> ChoiceOutput:
        skip = branch.params.skip_special_tokens
        detokenizer = Detokenizer(self._tokenizer, branch.prompt_ids, skip_special_tokens=skip)
        output = ChoiceOutput(branch, detokenizer)
        if branch.sent:
            sent = branch.sent[0]
            output.restore(sent, [self.decode_thought(one) for one in enumerate(sent.thoughts)])
        return output

    def _restore_ended(self, collector: ResultCollector, branch: Request, sent: SentChoice) -> None:
        """A choice ended in another engine, and others of its request run. A deterministic one is
        computed again and must end alike. An ordinary one only if it scores the prompt."""
        assert sent.finish_reason is not None
        branch_id = branch.request_id
        # An ordinary request's tokens count as candidates that are accepted at once.
        stats = Stats(candidates=len(sent.token_ids), accepted=len(sent.token_ids))
        ended = RequestEnded(branch_id, sent.finish_reason, "none", stats)
        _, choice = collector.outputs[branch_id].finish(ended)
        if not branch.deterministic and branch.score_from is None:
            collector.adopt_ended(choice, ended)
            return
        if branch.deterministic:
            if choice.logprobs is not None:
                choice = replace(choice, logprobs=sent.logprobs)
        else:
            branch = replace(branch, params=_up_to(branch.params, len(sent.token_ids)))
        again = replace(branch, sent=(sent.before_last(),))
        output = self._output(again)
        collector.restore_ended(branch_id, output, choice)
        self._scheduler.submit(again, output, _grammar(collector.request, branch))


def _grammar(request: Request, branch: Request) -> Grammar | None:
    return request.grammars[branch.index] if request.grammars else None


def _up_to(params: SamplingParams, num_tokens: int) -> SamplingParams:
    return replace(params, max_tokens=num_tokens, min_tokens=min(num_tokens, params.min_tokens))
