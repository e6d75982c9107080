"""What a model may add to a pass besides the decoder; a plain model has none. The scheduler's side is
`holdfast.scheduler.extension`."""

from collections.abc import Callable
from typing import Protocol

from holdfast.core.step_plan import Pass
from holdfast.models.decoder import LayerHook
from holdfast.numerics.arrays import Tensor
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.worker.cuda_graphs import Recorder
from holdfast.worker.input_batch import InputBatch
from holdfast.worker.transfer import HostCopies


class ExtensionCheck(Protocol):
    """Its part of a spot check. Both are called as those of `SpotCheck`."""

    def prepare(self) -> None: ...

    def compare(self, copies: HostCopies) -> Callable[[], str | None]: ...


class PassExtension(Protocol):
    """Called in this order for each pass: begin, hook or load, finish."""

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether it reads the output of the last layer for all tokens."""

    def begin(self, pass_: Pass, batch: InputBatch) -> Tensor:
        """Prepare for the pass, by the `extra` of its spans. Return what `hook` or `load` gets."""

    def hook(self, batch: ForwardBatch, given: Tensor | None) -> LayerHook:
        """Return what is done between layers. given: of `begin`; None: the pass is being captured and
        reads what `load` sets."""

    def load(self, given: Tensor, size: int) -> None:
        """Set the input of the captured pass of this size that is replayed next."""

    def finish(self, pass_: Pass, *, canonical: bool) -> tuple[object, ...]:
        """Return `PassResult.extra`: what it found, by span."""

    def check(self, pass_: Pass, page_size: int) -> ExtensionCheck:
        """Compare what it keeps of a spot check's tokens."""

    def capture(self, max_tokens: int, recorder: Recorder) -> None:
        """Capture its own CUDA graphs, before those of passes of up to max_tokens."""

    def release(self) -> None:
        """Drop its graphs. It runs without them from now on."""
