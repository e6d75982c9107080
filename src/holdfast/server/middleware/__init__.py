"""ASGI middleware between the HTTP protocol and the routes; `stack` has the order."""
