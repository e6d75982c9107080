"""Programs written for vLLM's offline API run here with the import and the model changed.

Each program uses the calls of vLLM's examples for offline inference: a chat template applied by hand,
chat with several conversations, prompts as token ids, logprobs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, SamplingParams

CHAT_TEMPLATE = """
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(MODEL)
messages_list = [[{"role": "user", "content": prompt}] for prompt in prompts]
texts = tokenizer.apply_chat_template(messages_list, tokenize=False, add_generation_prompt=True)
outputs = llm.generate(texts, sampling_params)
for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
"""

BATCHED_CHAT = """
messages_list = [[{"role": "user", "content": prompt}] for prompt in prompts]
outputs = llm.chat(messages_list, sampling_params)
for idx, output in enumerate(outputs):
    print(f"Prompt: {prompts[idx]!r}, Generated text: {output.outputs[0].text!r}")
"""

TOKEN_IDS = """
from holdfast import SamplingParams, TokensPrompt

ids = llm.get_tokenizer().encode("the quick brown fox")
params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1)
outputs = llm.generate([TokensPrompt(prompt_token_ids=ids), {"prompt_token_ids": ids}], params, use_tqdm=False)
outputs += llm.generate({"prompt_token_ids": ids}, sampling_params=params)
for output in outputs:
    completion = output.outputs[0]
    assert list(output.prompt_token_ids) == ids and output.finished and output.request_id
    assert completion.finish_reason == "length" and completion.stop_reason is None
    total = 0.0
    for token_id, top in zip(completion.token_ids, completion.logprobs):
        total += top[token_id].logprob
        for other, logprob in top.items():
            print(other, logprob.rank, logprob.decoded_token, logprob.logprob)
    assert total == completion.cumulative_logprob
    assert output.prompt_logprobs[0] is None
    scores = [entry[id_].logprob for id_, entry in zip(ids[1:], output.prompt_logprobs[1:])]
    print(sum(scores), completion.text)
"""


@pytest.fixture
def program(tiny_llama: Path, auto_llm: LLM) -> dict[str, Any]:
    """The names of the quick start, which `test_documented_python.py` runs; the programs continue with them."""
    return {
        "MODEL": str(tiny_llama),
        "llm": auto_llm,
        "prompts": ["the quick brown", "the lazy dog", "a b c"],
        "sampling_params": SamplingParams(temperature=0.8, top_p=0.95),
    }


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, BATCHED_CHAT, TOKEN_IDS])
def test_program_runs(program: dict[str, Any], source: str) -> None:
    exec(source, dict(program))


def make_bar(seen: list[Any]) -> Callable[..., Any]:
    class Bar:
        def __init__(self, **options: Any) -> None:
            seen.append(options["total"])

        def update(self, count: int) -> None:
            seen.append(count)

        def close(self) -> None:
            seen.append("closed")

    return Bar


def test_progress_bar_is_shown_when_asked(
    program: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, params = program["llm"], SamplingParams(max_tokens=2)
    seen: list[Any] = []
    llm.generate(["a", "b"], params, use_tqdm=make_bar(seen))
    assert seen == [2, 1, 1, "closed"]
    capsys.readouterr()
    llm.generate(["a", "b"], params)
    llm.generate(["a", "b"], params, use_tqdm=False)
    assert capsys.readouterr().err == "", "stderr is no terminal"
    llm.generate(["a", "b"], params, use_tqdm=True)
    shown = capsys.readouterr()
    assert "2/2" in shown.err and "tok/s" in shown.err and shown.out == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    llm.generate("a", params)
    assert capsys.readouterr().err == "", "one prompt needs none"
    llm.generate(["a", "b"], params)
    assert "2/2" in capsys.readouterr().err
