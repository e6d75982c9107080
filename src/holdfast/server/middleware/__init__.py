"""ASGI middleware between the HTTP protocol and the routes; `server.app` has the order."""
