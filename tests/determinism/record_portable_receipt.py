"""Record the receipt of this CPU for `test_default_model.py`: python tests/determinism/record_portable_receipt.py

Needed after a version of the code was raised. Receipts of other CPUs stay valid until then: run it on one of
each kind.
"""

import json
import platform
from pathlib import Path

from holdfast import LLM, SamplingParams

QUESTION = "Why is the sea salt? Answer in two sentences."


def main() -> None:
    llm = LLM(dtype="bf16", kv_memory="256MiB", max_pass_tokens=64, portable=True)
    params = SamplingParams(
        max_tokens=32, temperature=0.8, top_p=0.95, seed=7, logprobs=3, n=2, deterministic=True
    )
    result = llm.chat([{"role": "user", "content": QUESTION}], params)
    path = Path(__file__).parent / "receipts" / f"{platform.machine()}.json"
    path.write_text(json.dumps(result.receipt, indent=1) + "\n")


if __name__ == "__main__":
    main()
