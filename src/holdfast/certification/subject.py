"""What the result of a certification depends on: the subject of a certificate."""

from collections.abc import Mapping

from holdfast.models.config import FAMILY_DEFAULTS, plain_value
from holdfast.models.decoder import Decoder
from holdfast.numerics.arrays import HOST
from holdfast.numerics.settings import NumericSettings
from holdfast.numerics.versions import sources_digest
from holdfast.version import __version__
from holdfast.worker.device import device_name, device_parts


def certificate_subject(
    decoder: Decoder, settings: NumericSettings, canary: str, max_pass_tokens: int, max_len: int
) -> Mapping[str, object]:
    """Return everything the result of a certification depends on. The certificate's key is its hash.

    canary: the digest of the operations in fast form (`canary.py`).
    """
    model, device = decoder.config, decoder.backend.device
    libraries = {} if device is HOST else _torch()
    parts = device_parts(device)
    return {
        "holdfast": __version__,
        **libraries,
        "device": device_name(device),
        **({"device_parts": parts} if device.type == "cuda" else {"instructions": parts["instructions"]}),
        "code": sources_digest(),
        "settings": settings.as_dict(),
        "recipe": decoder.backend.recipe.as_dict(),
        "build": decoder.backend.build,
        "cuts": _split_n(decoder),
        "shapes": {
            "family": model.family,
            "hidden": model.hidden_size,
            "intermediate": model.intermediate_size,
            "layers": model.num_layers,
            "heads": [model.num_heads, model.num_kv_heads, model.head_dim],
            "vocab": model.vocab_size,
            "biases": [model.qkv_bias, model.o_bias, model.mlp_bias],
            "qk_norm": model.qk_norm,
            "windows": sorted({window for window in model.layer_windows if window is not None}),
            **{
                name: plain_value(getattr(model, name))
                for name, default in FAMILY_DEFAULTS.items()
                if getattr(model, name) != default
            },
        },
        "rows": max_pass_tokens,
        "context": max_len,
        "canary": canary,
    }


def _split_n(decoder: Decoder) -> dict[str, list[list[int]]]:
    """Return where GEMMs are split along N, by shape. The certificate checks that no bit depends on it."""
    linears = (product.linear for product in decoder.linears())
    return {
        f"{linear.out_features}x{linear.in_features}": [list(pair) for pair in sorted(linear.split_n.items())]
        for linear in linears
        if linear.split_n
    }


def _torch() -> dict[str, str]:
    from importlib.metadata import version  # takes time to import

    return {"torch": version("torch")}
