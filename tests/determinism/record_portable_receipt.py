"""Record the receipts of this CPU for `test_default_model.py`: python tests/determinism/record_portable_receipt.py

One in bf16, and one with the quantised blocks of the file as they are.

Needed after a version of the code was raised. Receipts of other CPUs stay valid until then: run it on one of
each kind.
"""

import json
import platform
from pathlib import Path

from holdfast import LLM, SamplingParams

QUESTION = "Why is the sea salt? Answer in two sentences."


def record(dtype: str, name: str) -> None:
    llm = LLM(dtype=dtype, kv_memory="256MiB", max_pass_tokens=64, portable=True)
    params = SamplingParams(
        max_tokens=32, temperature=0.8, top_p=0.95, seed=7, logprobs=3, n=2, deterministic=True
    )
    result = llm.chat([{"role": "user", "content": QUESTION}], params)
    path = Path(__file__).parent / "receipts" / f"{name}.json"
    path.write_text(json.dumps(result.receipt, indent=1) + "\n")


if __name__ == "__main__":
    record("bf16", platform.machine())
    record("auto", f"{platform.machine()}-blocks")
