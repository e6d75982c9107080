"""Stands in for CUDA graph capture: the work runs when it is captured, and again at each replay."""

from holdfast.worker.cuda_graphs import Work


class FakeRecorder:
    def __init__(self) -> None:
        self.num_recorded = 0

    def record(self, work: Work) -> Work:
        work()
        self.num_recorded += 1
        return work

    def kernels(self, work: Work) -> set[str]:
        return set()
