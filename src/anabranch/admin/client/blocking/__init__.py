"""The blocking admin client, made of the asynchronous one by `tools/generate_admin.py`."""
