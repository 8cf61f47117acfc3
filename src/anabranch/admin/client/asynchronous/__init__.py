"""The asynchronous admin client; `tools/generate_admin.py` makes the blocking one of it."""
