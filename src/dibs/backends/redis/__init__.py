"""The Redis store: one server, a primary that sentinels watch, a cluster; and each of them as a member of a quorum.

From the wire upwards: `address` (what a URL or a driver object says), `where` (which server has a key), `connection`
(one connection), `servers` (a pool for each server), `executor` (redirections and refusals), `lua/` (one script per
verb), `line`, `store`. Only `store` is loaded from outside, when a URL or a driver of
Redis is given: that is where a missing driver shows.
"""
