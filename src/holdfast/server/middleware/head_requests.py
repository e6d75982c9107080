"""HEAD is GET without the body. The routes need not know of it: the answer ends for them with its headers."""

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequestMiddleware:
    """Routes see a GET whose client leaves once it has the headers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        is_answered = False

        async def send_headers(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ClientDisconnect

        try:
            await self.app({**scope, "method": "GET"}, receive, send_headers)
        except ClientDisconnect:
            if not is_answered:
                raise
