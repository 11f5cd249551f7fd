"""Locks by majority: the members, how their votes count, the grantor, and the store that the URL names."""
