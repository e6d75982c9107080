"""Who sent a request: an API key or an address, and the limits that apply to it.

    tenant = tenant_of(request)     of a Starlette request, or of an ASGI scope; never raises
    tenant.id                       the key of per-tenant state: "key:alice", "address:192.0.2.7"
    tenant.name                     for logs and metrics: "alice", "192.0.2.7", "2001:db8::/64"
    tenant.has_key                  whether it is known by an API key, else by its address
    tenant.is_admin                 whether its key may see the requests of all tenants
    tenant.limits                   `TenantLimits`; a limit that is None does not apply

`tenant.py` has these types, `directory.py` knows the tenants, `key_file.py` reads `--key-file`,
`addresses.py` finds the address of a client behind proxies. `middleware.request_log` and
`middleware.tenant` store the tenant in the scope, before a byte of the body is read.
"""
