"""Settings of a tiny plain model, trained for a step: the backbone of tests."""

from holdfast_thinking.settings import BackboneSize, TrainingSettings

PLAIN = TrainingSettings(
    tasks=("parity",),
    form="none",
    max_events=3,
    size=BackboneSize(layers=3, hidden=32, inner=64, heads=2, kv_heads=1),
    window=None,
    context=2048,
    steps=1,
    batch=4,
    warmup=1,
    eval_texts=2,
    eval_every=0,
)
