"""The client: producers and consumers of scalable topics, asyncio first, and the same API blocking."""
