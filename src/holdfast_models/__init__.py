"""The thinking models `coin` and `smollm2-coin` as files. It is a wheel of its own, `holdfast-models`."""
