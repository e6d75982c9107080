"""Inspect (inspect-ai): its provider for OpenAI-compatible servers."""

import tempfile
from typing import Any

from checks import MAX_TOKENS, PROMPTS, TEMPERATURE, Target
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.scorer import includes

CLIENT = "inspect-ai"


def _evaluate(target: Target, prompts: list[str], **settings: Any) -> list[EvalSample]:
    """The samples, read while the log exists."""
    task = Task(
        [Sample(input=prompt, target="e", id=number) for number, prompt in enumerate(prompts)],
        scorer=includes(),
    )
    with tempfile.TemporaryDirectory() as folder:
        (log,) = eval(
            task,
            model=f"openai-api/local/{target.model}",
            model_base_url=target.base_url,
            model_args={"api_key": "unused"},
            log_dir=folder,
            display="none",
            max_retries=0,
            **settings,
        )
        assert log.status == "success", log.error and log.error.message
        return list(log.samples or ())


def _answers(samples: list[EvalSample]) -> list[tuple[Any, str]]:
    return sorted((sample.id, sample.output.completion) for sample in samples)


def check_eval(target: Target) -> None:
    """eval() with 2 epochs: one answer per prompt, one by one and eight at once"""
    settings: Any = {"epochs": 2, "max_tokens": 8, "temperature": TEMPERATURE, "seed": 7}
    alone = _answers(_evaluate(target, list(PROMPTS), max_connections=1, **settings))
    assert alone == _answers(_evaluate(target, list(PROMPTS), max_connections=8, **settings))
    assert len(alone) == 4 and len(set(alone)) == 2


def check_logprobs(target: Target) -> None:
    """eval() with logprobs"""
    (sample,) = _evaluate(target, [PROMPTS[0]], max_tokens=4, logprobs=True, top_logprobs=2)
    logprobs = sample.output.choices[0].logprobs
    assert logprobs is not None and 0 < len(logprobs.content) <= 4


def ask(target: Target, prompt: str, seed: int) -> str:
    settings: Any = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed}
    return _answers(_evaluate(target, [prompt], **settings))[0][1]
