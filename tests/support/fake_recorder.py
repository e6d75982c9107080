"""In place of captures: work is done when it is recorded, and again when it is replayed."""

from holdfast.worker.cuda_graphs import Work


class FakeRecorder:
    def __init__(self) -> None:
        self.num_recorded = 0

    def record(self, work: Work) -> Work:
        work()
        self.num_recorded += 1
        return work
