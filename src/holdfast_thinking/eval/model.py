"""A model under evaluation: its folder, how it was trained, its eval set and its engine."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm import LLM
from holdfast.engine.token_stream import TokenStream
from holdfast.errors import EngineStopped
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.locate import locate
from holdfast.thinking.config import ThinkingConfig, read_thinking, thinking_folder
from holdfast_thinking.eval.eval_set import EvalPrompt, EvalSet
from holdfast_thinking.run.export import TrainingInfo, read_training_info

OpenLLM = Callable[[Path], LLM]


@dataclass(frozen=True)
class EvalModel:
    name: str
    folder: Path
    info: TrainingInfo
    thinking: ThinkingConfig | None
    llm: LLM
    eval_set: EvalSet

    def params(self, max_tokens: int, **more: object) -> SamplingParams:
        """Greedy sampling."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            deterministic=True,
            **more,  # type: ignore[arg-type]
        )

    def generate(self, prompts: Sequence[EvalPrompt], **more: object) -> list[Result]:
        """Generate for all prompts in one batch."""
        return self.generate_each(prompts, [self.params(each.max_tokens, **more) for each in prompts])

    def generate_each(
        self, prompts: Sequence[EvalPrompt], params: Sequence[SamplingParams], llm: LLM | None = None
    ) -> list[Result]:
        fitting = [self._fit(each, one) for each, one in zip(prompts, params, strict=True)]
        results = (llm or self.llm).generate(
            [each.token_ids for each in prompts], fitting, use_tqdm=False, want_receipts=False
        )
        for result in results:
            if result.error is not None:
                raise EngineStopped(f"{self.name}: {result.error}")
        return results

    def stream(self, prompt: EvalPrompt) -> TokenStream:
        """One answer, delta by delta."""
        params = self._fit(prompt, self.params(prompt.max_tokens))
        return self.llm.stream(prompt.token_ids, params, want_receipt=False)

    def _fit(self, prompt: EvalPrompt, params: SamplingParams) -> SamplingParams:
        """No more tokens than the model has room for."""
        room = self.llm.engine.limits.max_model_len - len(prompt.token_ids)
        return replace(params, max_tokens=max(1, min(params.max_tokens, room)))

    def time(
        self, prompt: EvalPrompt, params: SamplingParams | None = None, llm: LLM | None = None
    ) -> tuple[float, Result]:
        """Seconds of one request alone, and its result."""
        params = params or self.params(prompt.max_tokens)
        started = time.perf_counter()
        (result,) = self.generate_each([prompt], [params], llm)
        return time.perf_counter() - started, result


def with_schedule(llm: LLM, **changes: Any) -> LLM:
    """The same engine with other scheduler settings.

    Only one of the two may run at a time; no prefix cache.
    """
    assert not llm.engine.scheduler.config.prefix_cache, "the two write to the same pages"
    twin = copy.copy(llm)
    twin.engine = llm.engine.restarted(replace(llm.engine.scheduler.config, **changes))
    return twin


def open_model(
    name: str,
    folder: Path,
    open_llm: OpenLLM,
    tasks: tuple[str, ...],
    seed: int,
    long_texts: bool,
) -> EvalModel:
    info = read_training_info(folder)
    checkpoint = open_checkpoint(locate(str(folder)).path)
    own = thinking_folder(str(folder), checkpoint)
    thinking = None if own is None else read_thinking(own, checkpoint.config)
    eval_set = EvalSet(folder, info, thinking, tasks, seed, long_texts)
    llm = open_llm(folder)
    return EvalModel(name, folder, info, thinking, llm, eval_set)
