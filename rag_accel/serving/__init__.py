"""HTTP in front of one object: a program of a framework, a RAGraph or an embedder.

``served`` is the seam to the frameworks; ``target`` finds the object, and ``tenants`` makes it
answer for each tenant. ``admission`` decides who is let in, and has them wait; ``request_guard``
refuses unknown hosts and ambiguous lengths; ``app`` has the endpoints, ``connections`` the bounds
of each connection, ``http_server`` the process.
"""
