"""General prompts: a thinking model should think nothing about them, and where it thinks nothing its
answer is the backbone's, bit for bit.
"""

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm import LLM
from holdfast.models.adapter import is_adapter
from holdfast.models.locate import locate
from holdfast_thinking.data.general import eval_prompts
from holdfast_thinking.eval.model import EvalModel, OpenLLM
from holdfast_thinking.eval.report import GeneralPrompts

_MAX_TOKENS = 48
_LISTED = 10


def measure_general(
    model: EvalModel, open_llm: OpenLLM, prompts: list[str] | None = None, max_tokens: int = _MAX_TOKENS
) -> GeneralPrompts:
    """An adapter is compared with its backbone, which is opened beside it."""
    prompts = eval_prompts() if prompts is None else prompts
    own = _answers(model.llm, prompts, max_tokens)
    thoughts = [[each.text for each in one.thoughts if each.token_ids] for one in own]
    same = None
    if is_adapter(model.folder):
        base = _answers(open_llm(locate(str(model.folder)).path), prompts, max_tokens)
        same = sum(
            _bits(one) == _bits(other) and not said
            for one, other, said in zip(own, base, thoughts, strict=True)
        )
    return GeneralPrompts(
        model=model.name,
        count=len(prompts),
        silent=sum(not said for said in thoughts),
        same_bits=same,
        thoughts=[said[0] for said in thoughts if said][:_LISTED],
    )


def _answers(llm: LLM, prompts: list[str], max_tokens: int) -> list[Result]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=1, deterministic=True)
    return llm.chat([[{"role": "user", "content": each}] for each in prompts], params, use_tqdm=False)


def _bits(result: Result) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Tokens and the bits of their logprobs."""
    logprobs = result.choices[0].logprobs or ()
    return tuple(result.token_ids), tuple(float(each.logprob).hex() for each in logprobs)
