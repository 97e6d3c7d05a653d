"""HTTP servers: sockets, TLS, limits of connections, logins and names. It knows no page.

It needs the packages of the extra of its user, who names that extra if one is missing.
"""
