"""A GGUF file as a checkpoint: Hugging Face names and row order; tensors are dequantised when they
are read."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadWeights
from holdfast.models.checkpoint import RawTensor, Shape, expected_tensors, require_tensors
from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.names import PERMUTED, StoredName, architecture, find_tensor, gguf_config
from holdfast.models.gguf.reader import GgufFile, StoredType
from holdfast.numerics.arrays import DType, Tensor, host, rounded
from holdfast.numerics.blocks import BLOCK_FORMATS, Blocks, find_bad_scale


class GgufCheckpoint:
    """The weights of one GGUF file, checked against its metadata when opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GgufFile(path)
        self.config = gguf_config(self.file)
        self._is_permuted = architecture(self.file) in PERMUTED
        self._shapes = expected_tensors(self.config)
        self._stored = {name: find_tensor(name, self.config, self.file.tensors) for name in self._shapes}
        require_tensors(self._stored_shapes(), self._find_shape, path.name)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def tensor(self, name: str, dtype: DType | None = None) -> Tensor:
        """Return the tensor rounded to `dtype`; without one in fp32, or as stored in a float format."""
        shape, stored = self._shapes[name], self.file.tensors[self._stored[name].name].stored
        raw = self._bytes(name)
        self._require_finite_scales(name, stored, raw)
        return rounded(dequantize(raw, stored).view(shape), dtype)

    def block_formats(self) -> frozenset[str]:
        """Return the formats of matrices that a backend may keep in blocks."""
        matrices = (self._stored[name].name for name, shape in self._shapes.items() if len(shape) == 2)
        return frozenset(self.file.tensors[name].stored.name for name in matrices) & frozenset(BLOCK_FORMATS)

    def blocks(self, name: str) -> Blocks | None:
        """Return the matrix in the blocks of the file, or None if it is stored in another format."""
        shape, stored = self._shapes[name], self.file.tensors[self._stored[name].name].stored
        if stored.name not in BLOCK_FORMATS or len(shape) != 2:
            return None
        raw = self._bytes(name)
        self._require_finite_scales(name, stored, raw)
        return Blocks(stored.name, host(raw.reshape(shape[0], -1)), shape[1])

    def raw(self, name: str) -> RawTensor:
        """Return the tensor's bytes: in the mapped file, or a copy if the rows were permuted."""
        return RawTensor(self.file.tensors[self._stored[name].name].stored.name, self._bytes(name).data)

    def release(self) -> None:
        self.file.release()

    def _require_finite_scales(self, name: str, stored: StoredType, raw: NDArray[np.uint8]) -> None:
        """No converter writes another scale than a finite number: such a block is damaged."""
        bad = find_bad_scale(stored.name, raw)
        if bad is not None:
            raise BadWeights(
                f"the tensor {self._stored[name].name!r} of {self.path.name} is damaged: the scale of its block "
                f"{bad} ({stored.name}) is not a finite number. Get the file again, or convert the model anew"
            )

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        stored = self._stored[name]
        raw = self.file.raw(stored.name)
        if stored.expert is not None:  # rows are whole blocks, so an expert's bytes are together
            raw = raw.reshape(self.config.num_experts, stored.num_parts, -1)[stored.expert, stored.part]
        return self._restore_rows(stored.name, raw)

    def _stored_shapes(self) -> dict[str, Shape]:
        return {
            stored.name: self._whole_shape(stored, self._shapes[name])
            for name, stored in self._stored.items()
        }

    def _whole_shape(self, stored: StoredName, shape: Shape) -> Shape:
        if len(shape) == 3:  # of a convolution
            return shape[0], shape[2]
        if stored.expert is None:
            return shape
        return (self.config.num_experts, stored.num_parts * shape[0], *shape[1:])

    def _find_shape(self, stored_name: str) -> Shape | None:
        tensor = self.file.tensors.get(stored_name)
        if tensor is None:
            return None
        if stored_name.endswith((".ssm_a", ".ssm_d", ".ssm_norm.weight")):
            return (prod(tensor.shape),)
        is_one_row = stored_name.split(".")[-2] == "ffn_gate_inp_shexp" and len(tensor.shape) == 1
        return (1, *tensor.shape) if is_one_row else tensor.shape

    def _restore_rows(self, stored_name: str, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Undo the permutation of llama files and their like, on the stored bytes: they interleave the halves of
        each query and key head.

        file            a0 b0 a1 b1 ... Hugging Face    a0 a1 ... b0 b1 ...
        """
        num_heads = {"attn_q": self.config.num_heads, "attn_k": self.config.num_kv_heads}.get(
            stored_name.split(".")[-2]
        )
        if not self._is_permuted or num_heads is None:
            return raw
        pairs = raw.reshape(num_heads, self.config.head_dim // 2, 2, -1)  # [H, D / 2, 2, bytes of a row]
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)
