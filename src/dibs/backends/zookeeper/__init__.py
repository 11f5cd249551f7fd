"""The `zookeeper://` store."""
