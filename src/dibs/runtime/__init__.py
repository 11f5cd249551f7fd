"""The worlds that the core runs in: threads and asyncio."""
