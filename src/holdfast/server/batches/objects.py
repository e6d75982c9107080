"""The JSON of files and batches, in OpenAI's words. `StoredFile` and `StoredBatch` are what is on disk."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.server.api.schema.objects import JsonObject

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Purpose = Literal["batch", "batch_output"]
ENDED = ("failed", "completed", "expired", "cancelled")


class FileObject(JsonObject, tag_field="object", tag="file"):
    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"]


class FileList(JsonObject, tag_field="object", tag="list"):
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(JsonObject, tag_field="object", tag="file"):
    id: str
    deleted: Literal[True]


class BatchError(JsonObject):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(JsonObject, tag_field="object", tag="list"):
    data: list[BatchError]


class RequestCounts(JsonObject):
    total: int
    completed: int
    failed: int


class Batch(JsonObject, tag_field="object", tag="batch", kw_only=True):
    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    metadata: dict[str, str] | None = None
    errors: Annotated[BatchErrors | None, Meta(description="Why the batch failed as a whole.")] = None
    output_file_id: Annotated[str | None, Meta(description="Responses with status 200.")] = None
    error_file_id: Annotated[str | None, Meta(description="All others.")] = None
    receipts_file_id: Annotated[str | None, Meta(description="A receipt for each answer.")] = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None


class BatchList(JsonObject, tag_field="object", tag="list"):
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredFile(Struct):
    """owner: the id of a tenant."""

    owner: str
    content: FileObject


class StoredBatch(Struct):
    owner: str
    content: Batch

    @property
    def is_ended(self) -> bool:
        return self.content.status in ENDED

    def set_status(self, status: BatchStatus, now: int) -> None:
        """Change the status, and note when."""
        self.content.status = status
        if f"{status}_at" in self.content.__struct_fields__:
            setattr(self.content, f"{status}_at", now)
