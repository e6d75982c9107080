"""A JSON response, encoded by msgspec: several times as fast as the standard library, and no NaN can come out of it."""

from typing import Any

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


class JSONResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoder.encode(content)
