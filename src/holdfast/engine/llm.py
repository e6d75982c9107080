"""`LLM`: offline inference. Prompts in, results out, in the order of the prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.options import takes_fields_of
from holdfast.core.request import Request
from holdfast.core.results import Result
from holdfast.core.sampling_params import ForcedThoughts, SamplingParams, score_params
from holdfast.engine.builder import build
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.input_processor import Prompt
from holdfast.engine.status import ShowProgress
from holdfast.errors import EngineStopped, InvalidRequest
from holdfast.text.chat_template import ChatTemplate


class LLM:
    """A loaded model and its engine."""

    @takes_fields_of(EngineConfig)
    def __init__(self, *args: Any, **options: Any) -> None:
        """Load a model: a folder, a GGUF file, a Hugging Face id, a built-in name or the default.

        The other options are the fields of `EngineConfig`. Raises `ModelError` if the model cannot
        be loaded, `ConfigError` if the settings do not fit it.
        """
        self._load(EngineConfig(*args, **options))

    @classmethod
    def from_config(cls, config: EngineConfig, progress: ShowProgress | None = None) -> "LLM":
        """Load the model a configuration describes.

        progress is called with (stage, done, total) while it loads.
        """
        llm = cls.__new__(cls)
        llm._load(config, progress)
        return llm

    def _load(self, config: EngineConfig, progress: ShowProgress | None = None) -> None:
        self.config = config
        self.engine: Engine = build(config, progress)
        self._template: ChatTemplate | None = None

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        want_receipts: bool = True,
    ) -> list[Result]:
        """Answer every prompt: one result for each, in order.

        Text is tokenised without a chat template. A wrong prompt or setting raises before anything runs.
        """
        if not isinstance(prompts, str):
            _require_list("prompts", prompts)
        batch = [prompts] if isinstance(prompts, str) else list(prompts)
        each = _params_for(batch, params)
        return self._answer(
            [
                self.engine.prepare(prompt, one, want_receipt=want_receipts)
                for prompt, one in zip(batch, each, strict=True)
            ]
        )

    def score(
        self,
        prompt: Prompt,
        completion: Prompt,
        *,
        deterministic: bool = True,
        think: bool = True,
        forced_thoughts: ForcedThoughts = (),
    ) -> list[float]:
        """The logprob of each token of a completion after a prompt.

        They are the bits that were reported when the completion was generated deterministically (by
        a model that thinks: with the same think and forced_thoughts). Each may be text or token
        ids; a text completion is tokenised alone, without special tokens.
        """
        pairs = [(prompt, completion)]
        return self.score_batch(
            pairs, deterministic=deterministic, think=think, forced_thoughts=forced_thoughts
        )[0]

    def score_batch(
        self,
        pairs: Sequence[tuple[Prompt, Prompt]],
        *,
        deterministic: bool = True,
        think: bool = True,
        forced_thoughts: ForcedThoughts = (),
    ) -> list[list[float]]:
        """`score` for many pairs of prompt and completion in one batch, in order."""
        _require_list("pairs", pairs)
        params = score_params(deterministic=deterministic, think=think, forced_thoughts=forced_thoughts)
        requests = [
            self.engine.prepare(prompt, params, completion=completion, want_receipt=False)
            for prompt, completion in pairs
        ]
        results = self._answer(requests)
        for result in results:
            if result.error is not None:
                raise EngineStopped(result.error)
        return [
            [one.logprob for one in result.prompt_logprobs or () if one is not None] for result in results
        ]

    def _answer(self, requests: Sequence[Request]) -> list[Result]:
        for index, request in enumerate(requests):
            try:
                self.engine.submit(request)
            except BaseException:
                for earlier in requests[:index]:
                    self.engine.abort(earlier.request_id)
                raise
        results = self._run({request.request_id for request in requests})
        return [results[request.request_id] for request in requests]

    def chat(self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None) -> Result:
        """Answer a conversation through the model's chat template."""
        token_ids = self.chat_tokens(messages)
        return self.generate([token_ids], params)[0]

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """A conversation as prompt tokens. The template writes its own special tokens."""
        if self._template is None:
            self._template = ChatTemplate.of(self.engine.tokenizer)
        return self.engine.tokenizer.encode(self._template.render(messages), add_special_tokens=False)

    def _run(self, wanted: set[int]) -> dict[int, Result]:
        """Step until these requests have ended, and then the spot checks that are due."""
        results: dict[int, Result] = {}
        try:
            while wanted - results.keys():
                for output in self.engine.step():
                    if output.result is not None:
                        results[output.request_id] = output.result
            while self.engine.has_work and not self.engine.has_requests:
                self.engine.step()
        except BaseException:  # an interrupt must not leave requests running
            for request_id in wanted - results.keys():
                self.engine.abort(request_id)
            raise
        return results


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    _require_list("params", params)
    if len(params) != len(prompts):
        raise InvalidRequest(
            f"{len(prompts)} prompts but {len(params)} settings; give one each, or one for all"
        )
    return list(params)


def _require_list(name: str, values: object) -> None:
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Sequence):
        raise InvalidRequest(f"{name} must be one of them or a list, not {type(values).__name__}")
