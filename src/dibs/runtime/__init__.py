"""The runtimes of the core: threads and asyncio."""
