"""Count how many of the written questions and messages about coins a model answers, for the models' cards.

    PYTHONPATH=src:tests python -m support.coin_scores MODEL [--chat] [--device cuda] [--out FILE]

With `--chat` the questions about coins are asked as messages, and the 60 messages with other instructions, too.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from holdfast import LLM, SamplingParams
from holdfast.models.locate import BUILTIN
from support.coin_questions import CoinQuestion, coin_messages, coin_questions

SETS = ("held-out", "development", "free-1", "free-2", "free-3")
_OTHER = ("variables", "outside")  # the adapter is asked about coins only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write every answer to this file, a JSON object a line")
    args = parser.parse_args()
    llm = LLM(args.model, device=args.device, max_num_seqs=32, max_model_len=1024)
    lines = []
    for name in args.sets.split(","):
        asked = [each for each in coin_questions(name) if not (args.chat and each.kind in _OTHER)]
        answers = ask(llm, asked, args.chat)
        right = [each.is_right(f" {answer}") for each, answer in zip(asked, answers, strict=True)]
        shares = Counter(each.kind for each, is_right in zip(asked, right, strict=True) if is_right)
        kinds = Counter(each.kind for each in asked)
        told = ", ".join(f"{kind} {shares[kind]} of {kinds[kind]}" for kind in kinds)
        print(f"{name}: {sum(right)} of {len(asked)}: {told}", flush=True)
        lines += [
            {"set": name, "kind": each.kind, "prompt": each.prompt, "answer": answer, "right": is_right}
            for each, answer, is_right in zip(asked, answers, right, strict=True)
        ]
    if args.chat:
        lines += follow(llm, LLM(BUILTIN, device=args.device, max_num_seqs=32, max_model_len=1024))
    if args.out:
        args.out.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines))


def ask(llm: LLM, asked: list[CoinQuestion], in_chat: bool) -> list[str]:
    if in_chat:
        return [each.text for each in chat(llm, [each.prompt.removesuffix(" A:") for each in asked], 16)]
    params = SamplingParams(max_tokens=12, temperature=0, deterministic=True)
    return [each.text for each in llm.generate([each.prompt for each in asked], params, use_tqdm=False)]


def chat(llm: LLM, prompts: list[str], max_tokens: int):
    params = SamplingParams(max_tokens=max_tokens, temperature=0, deterministic=True, logprobs=1)
    return llm.chat([[{"role": "user", "content": each}] for each in prompts], params, use_tqdm=False)


def follow(adapter: LLM, backbone: LLM) -> list[dict[str, object]]:
    """Instruct with messages that mention a coin: how many answers are the backbone's, how many follow."""
    lines = list[dict[str, object]]()
    for instruction in ("first", "last"):
        messages = coin_messages(instruction)
        prompts = [each.prompt for each in messages]
        found, own = chat(adapter, prompts, 64), chat(backbone, prompts, 64)
        for message, mine, its in zip(messages, found, own, strict=True):
            same = mine.token_ids == its.token_ids and mine.choices[0].logprobs == its.choices[0].logprobs
            lines.append(
                {
                    "set": f"instruction {instruction}",
                    "prompt": message.prompt,
                    "answer": mine.text,
                    "same_bits": same,
                    "followed": message.is_followed(mine.text),
                    "backbone_followed": message.is_followed(its.text),
                }
            )
        counts = {
            key: sum(bool(each[key]) for each in lines[-len(messages) :]) for key in list(lines[-1])[3:]
        }
        print(f"instruction {instruction}, of {len(messages)}: {counts}", flush=True)
    return lines


if __name__ == "__main__":
    main()
