"""ZooKeeper's protocol: bytes, sessions, sockets."""
