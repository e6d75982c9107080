"""Which GEMMs of which models are one bit class over all batch sizes, their split-K, and its cost.

    python benchmarks/gpu_certificate.py --out docs/data

No model is loaded: every GEMM has random weights of its shape. The choice is the one an engine makes at
start-up.
"""

import time
from pathlib import Path

import torch

from engines import TINY_SHAPES, shape_config
from holdfast.certification.gemm.choose import model_gemm_shapes, search_recipes
from holdfast.certification.gemm.recipes import library_multiply
from holdfast.engine.config import dtype_name
from measure import Bench, new_parser

MODELS = "llama-3.1-8b,qwen3-0.6b,qwen2.5-1.5b,llama-3.1-70b,smollm2-135m"
REFERENCE_TOKENS = 256
SIZES = (*range(1, 513), 1024, 2048, 4096)
TINY_SIZES = (1, 2, 3, 8, 32, 64)


def run_model(bench: Bench, model: str, dtype: str | None) -> None:
    """Add a row for each GEMM. `at N` is its time with N rows relative to the plain call's."""
    started = time.perf_counter()
    config, sizes = shape_config(model), TINY_SIZES if model in TINY_SHAPES else SIZES
    choices = search_recipes(
        model_gemm_shapes(config),
        library_multiply,
        dtype=getattr(torch, dtype_name(dtype or "auto", config.torch_dtype)),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        subject={
            "for": "bench",
            "moment": started,
        },  # a new key each time: a cached choice would measure nothing
        reference_tokens=min(REFERENCE_TOKENS, max(sizes)),
        sizes=sizes,
    )
    for choice in choices:
        bench.row(
            part="certificate",
            model=model,
            gemm=choice.name,
            size=f"{choice.out_features} x {choice.in_features}",
            split_k=choice.split_k,
            certified_sizes=f"{len(choice.matching_sizes)} of {choice.num_sizes_tested}",
            plain_classes=choice.num_plain_results,
            **{f"at {rows}": ratio for rows, ratio in choice.relative_times},
        )
    bench.log(f"{model}: {time.perf_counter() - started:.1f} s")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--models", default=MODELS, help="shapes, separated by commas; tiny for a CPU")
    parser.add_argument("--dtype", help="bf16, fp16 or fp32; default: of each shape")
    parser.add_argument("--out", type=Path, help="folder for bench-gpu-certificate.json")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no model after this time")
    given = parser.parse_args()
    bench = Bench("bench-gpu-certificate", given.out, given.minutes)
    for model in given.models.split(","):
        if not bench.is_over("certificate"):
            with bench.part(part="certificate", model=model):
                run_model(bench, model, given.dtype)
    bench.finish()


if __name__ == "__main__":
    main()
