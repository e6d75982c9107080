"""320 questions for `coin` that were written one by one, not from templates, without a look at those of training.

The wrong answers to the first 160 were read when wordings were added to training; those to the others were
only counted.
"""

import json
from pathlib import Path

from support.coin_questions import CoinQuestion

_FILE = Path(__file__).with_suffix(".jsonl")
_OTHER = {"heads": "tails", "tails": "heads", "yes": "no", "no": "yes"}


def coin_free_questions(part: int) -> list[CoinQuestion]:
    """part: 1 or 2."""
    asked = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    return [
        CoinQuestion(each["kind"], each["prompt"], each["accepted"], _OTHER.get(each["accepted"], ""))
        for each in asked
        if each["part"] == part
    ]
