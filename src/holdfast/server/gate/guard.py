"""What stands between the socket and the routes, from the outside in.

    AnswerHeaders   every answer has the request's id, even a refusal
    Accounts        the access log says what the client was told
    Origins         a browser must be able to read refusals, so it stands outside of them
    LastResort      whatever is raised inside becomes an answer
    Keys            who may not ask costs nothing more
    HeadRequests    routes know of GET only
    Bodies          right in front of whoever reads them

The order is the point: each relies on those around it.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.middleware import Middleware

from holdfast.server.config import ServerConfig
from holdfast.server.gate.accounts import Accounts
from holdfast.server.gate.answer_headers import AnswerHeaders
from holdfast.server.gate.body import Bodies
from holdfast.server.gate.head_requests import HeadRequests
from holdfast.server.gate.keys import Keys
from holdfast.server.gate.last_resort import LastResort, answer_framework_errors
from holdfast.server.gate.origins import Origins


def guard(app: FastAPI, config: ServerConfig, refused: Callable[[str], None] = lambda code: None) -> None:
    """Put all of it in front of the app's routes. refused hears the code of whatever is refused before a route answers."""
    app.user_middleware[:] = [
        Middleware(AnswerHeaders),
        Middleware(Accounts, refused),
        Middleware(Origins, config),
        Middleware(LastResort),
        Middleware(Keys, config),
        Middleware(HeadRequests),
        Middleware(Bodies, config),
    ]
    answer_framework_errors(app)
    app.router.redirect_slashes = False  # a route has one URL, and no answer is made from a Host header
