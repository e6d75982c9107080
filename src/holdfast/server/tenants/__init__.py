"""Who sent a request, and what it may use: an API key or an address, limits, places, and turns.

`middleware.request_log` and `middleware.tenant` store the `Tenant` in the scope, before a byte of the body
is read; `tenant_of` reads it.
"""
