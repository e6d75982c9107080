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
from holdfast.core.request import Prepared
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

    def collector(self, prepared: Prepared, *, wants_deltas: bool) -> ResultCollector:
        """A collector for the choices of a request, none of which is submitted yet."""
        outputs = {id_: self._output(prepared, index) for index, id_ in enumerate(prepared.request.ids)}
        return ResultCollector(prepared, outputs, wants_deltas=wants_deltas)

    def submit(self, collector: ResultCollector) -> None:
        """Submit all choices, those that ended in another engine included."""
        for index, output in enumerate(collector.outputs.values()):
            if output.sent.has_ended:
                self._restore_ended(collector, index, output.sent)
            else:
                self._scheduler.submit(collector.prepared, output, index)

    def recompute_ended(self, collector: ResultCollector) -> None:
        """Submit again the choices that ended while others of their request still run.

        The scheduler restarts the live ones itself.
        """
        prepared = replace(collector.prepared, request=replace(collector.request, sent=()))
        for branch_id in collector.ended_ids:
            index = branch_id - prepared.request_id
            output = self._output(prepared, index)
            collector.recompute(branch_id, output)
            if prepared.grammars:
                prepared.grammars[index].restart()
            self._scheduler.submit(prepared, output, index)

    def decode_thought(self, item: Any) -> Thought:
        chunk, token_ids = item
        logs = thought_logs(self._scheduler.config.new_extension)
        assert logs is not None
        position = (chunk + 1) * logs.chunk_len - 1
        # A model may have more ids than its tokenizer; the ids above have no text.
        known = [token_id for token_id in token_ids if token_id < self._tokenizer.vocab_size]
        return Thought(chunk, position, self._tokenizer.decode(known).strip(), token_ids)

    def _output(self, prepared: Prepared, index: int) -> ChoiceOutput:
        request = prepared.request
        skip = request.params.skip_special_tokens
        detokenizer = Detokenizer(self._tokenizer, request.prompt_ids, skip_special_tokens=skip)
        output = ChoiceOutput(prepared, index, detokenizer)
        output.restore([self.decode_thought(one) for one in enumerate(output.sent.thoughts)])
        return output

    def _restore_ended(self, collector: ResultCollector, index: int, sent: SentChoice) -> None:
        """A choice ended in another engine, and others of its request run. A deterministic one is
        computed again and must end alike. An ordinary one only if it scores the prompt."""
        assert sent.finish_reason is not None
        request = collector.request
        branch_id = request.request_id + index
        # An ordinary request's tokens count as candidates that are accepted at once.
        stats = Stats(candidates=len(sent.token_ids), accepted=len(sent.token_ids))
        ended = RequestEnded(branch_id, sent.finish_reason, "none", stats)
        _, choice = collector.outputs[branch_id].finish(ended)
        if not request.deterministic and (index or request.score_from is None):
            collector.adopt_ended(choice, ended)
            return
        if request.deterministic:
            if choice.logprobs is not None:
                choice = replace(choice, logprobs=sent.logprobs)
        else:
            request = replace(request, params=_up_to(request.params, len(sent.token_ids)))
        before = list(request.sent)
        before[index] = sent.before_last()
        again = replace(collector.prepared, request=replace(request, sent=tuple(before)))
        output = self._output(again, index)
        collector.restore_ended(branch_id, output, choice)
        self._scheduler.submit(again, output, index)


def _up_to(params: SamplingParams, num_tokens: int) -> SamplingParams:
    return replace(params, max_tokens=num_tokens, min_tokens=min(num_tokens, params.min_tokens))
